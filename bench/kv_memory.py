"""Memory for keys and values of all requests at once: one size for every server of a bench, ours and the peers'."""

import json
from pathlib import Path
from typing import Final

from kernels import _native

LEAST_BYTES: Final = 1 << 30
"""The service's default."""
_VALUE_BYTES: Final = 2.1
"""16 bits, and the scales."""


def round_up(tokens: int, multiple: int = 256) -> int:
    return -(-tokens // multiple) * multiple


def kv_memory_bytes(folder: Path, slots: int, context_tokens: int) -> int:
    """KV memory for `slots` requests of `context_tokens` tokens, at least the service's default.

    folder: of a packed model. Raises OSError, ValueError for one without its config.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not {"num_attention_heads", "num_hidden_layers", "hidden_size"} <= config.keys():  # another family's names
        page_bytes = _native.Model.kv_page_bytes(str(folder), "int16")
        return max(
            LEAST_BYTES, slots * round_up(context_tokens, _native.PAGE_TOKENS) // _native.PAGE_TOKENS * page_bytes
        )
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    values = 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_size
    return max(LEAST_BYTES, int(slots * round_up(context_tokens) * values * _VALUE_BYTES))
