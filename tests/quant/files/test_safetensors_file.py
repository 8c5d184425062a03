import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from quant.errors import SourceError
from quant.files.safetensors_file import read_header

GOOD = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


def file_bytes(header: Any, data: bytes = bytes(16), *, claimed: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if claimed is None else claimed).to_bytes(8, "little") + text + data


def test_reads_what_the_official_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.zeros((3, 2), np.float32), "b": np.zeros((0,), np.int8)}, path, {"k": "v"})
    tensors, metadata = read_header(path)
    assert metadata == {"k": "v"}
    assert {name: (t.dtype, t.shape, t.size_bytes) for name, t in tensors.items()} == {
        "a": ("F32", (3, 2), 24),
        "b": ("I8", (0,), 0),
    }


def changed(**changes: Any) -> dict[str, Any]:
    return {"a": {**GOOD["a"], **changes}}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "shorter than 8 bytes"),
    "short": (b"\x01\x02", "shorter than 8 bytes"),
    "header longer than file": (file_bytes(GOOD, claimed=10_000), "claims a header of 10000 bytes"),
    "header of 2**64 - 1 bytes": (file_bytes(GOOD, claimed=2**64 - 1), "claims a header of"),
    "no json": (file_bytes(b"{'a': 1}"), "header is not JSON"),
    "no utf-8": (file_bytes(b'{"\xff": 1}'), "header is not JSON"),
    "array": (file_bytes([1, 2]), "not a JSON object"),
    "deep nesting": (file_bytes(b"[" * 100_000), "header is not JSON"),
    "name twice": (file_bytes(b'{"a":' + json.dumps(GOOD["a"]).encode() + b',"a":1}'), "names something twice"),
    "metadata of numbers": (file_bytes(GOOD | {"__metadata__": {"k": 1}}), "not a map of strings"),
    "entry no object": (file_bytes({"a": 3}), "'a' is not described"),
    "entry with an extra key": (file_bytes(changed(x=1)), "'a' is not described"),
    "unknown dtype": (file_bytes(changed(dtype="F33")), "unknown type 'F33'"),
    "dtype no string": (file_bytes(changed(dtype=["F32"])), "unknown type"),
    "negative shape": (file_bytes(changed(shape=[-2, -2])), "not non-negative integers"),
    "fractional shape": (file_bytes(changed(shape=[2.0, 2])), "not non-negative integers"),
    "boolean shape": (file_bytes(changed(shape=[True, 4])), "not non-negative integers"),
    "huge shape": (file_bytes(changed(shape=[2**62, 2**62])), "needs .* bytes but has 16"),
    "three offsets": (file_bytes(changed(data_offsets=[0, 8, 16])), "not non-negative integers"),
    "offsets reversed": (file_bytes(changed(data_offsets=[16, 0])), "needs 16 bytes but has -16"),
    "hole": (file_bytes(changed(data_offsets=[4, 20]), bytes(20)), "leaves a hole"),
    "overlap": (file_bytes(GOOD | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}), "overlaps"),
    "truncated": (file_bytes(GOOD, bytes(12)), "end at byte .* but the file at byte"),
    "trailing bytes": (file_bytes(GOOD, bytes(17)), "end at byte .* but the file at byte"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_cost_an_error(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="can't be read: No such file"):
        read_header(tmp_path / "none")
