import json
from pathlib import Path

from bench.kv_memory import LEAST_BYTES, kv_memory_bytes


def test_memory_for_keys_and_values_holds_all_slots(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    token_bytes = 2 * 2 * 30 * 3 * 64
    assert kv_memory_bytes(tmp_path, 64, 4000) >= 64 * 4000 * token_bytes
    assert kv_memory_bytes(tmp_path, 64, 4000) < 64 * 4100 * token_bytes * 1.1
    assert kv_memory_bytes(tmp_path, 1, 1000) == LEAST_BYTES
