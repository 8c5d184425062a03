import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from quant.errors import SourceError
from quant.sources.gguf_file import read_gguf

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def string(text: str | bytes, claimed: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if claimed is None else claimed) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


def file_bytes(
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
    data: bytes = bytes(256),
) -> bytes:
    entries, tensors = entries or [], tensors or []
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    header = magic + struct.pack("<IQQ", version, tensor_count, entry_count) + b"".join(entries + tensors)
    return header + bytes(-len(header) % 32) + data


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_kind_of_value(tmp_path: Path, version: int) -> None:
    path = tmp_path / "x.gguf"
    entries = [
        entry("u32", U32, struct.pack("<I", 7)),
        entry("f32", F32, struct.pack("<f", 0.5)),
        entry("bool", BOOL, b"\x01"),
        entry("text", STRING, string("héllo")),
        entry("numbers", ARRAY, struct.pack("<IQ3i", 5, 3, -1, 0, 1)),
        entry("texts", ARRAY, struct.pack("<IQ", STRING, 2) + string("a") + string("")),
    ]
    path.write_bytes(file_bytes(entries, [tensor("t", (4, 3)), tensor("q", (32, 2), 2, 64)], version=version))
    gguf = read_gguf(path)
    numbers = gguf.metadata.pop("numbers")
    assert np.array_equal(numbers, [-1, 0, 1])
    assert gguf.metadata == {"u32": 7, "f32": 0.5, "bool": True, "text": "héllo", "texts": ["a", ""]}
    assert gguf.tensors["t"].shape == (3, 4)
    assert gguf.tensors["t"].row_bytes == 16
    assert gguf.tensors["q"].row_bytes == 18
    assert gguf.tensors["q"].offset == gguf.tensors["t"].offset + 64


def test_alignment_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    alignment = entry("general.alignment", U32, struct.pack("<I", 128))
    path.write_bytes(file_bytes([alignment], [tensor("t", (4,))]))
    assert read_gguf(path).tensors["t"].offset == 128


HUGE = 2**64 - 1
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not a GGUF file"),
    "magic": (file_bytes(magic=b"GGML"), "does not begin with 'GGUF'"),
    "version 1": (file_bytes(version=1), "GGUF version 1"),
    "big-endian": (file_bytes(version=3 << 24), "big-endian"),
    "only magic": (b"GGUF", "ends inside its header"),
    "tensor count": (file_bytes(counts=(HUGE, 0)), "claims 18446744073709551615 tensors"),
    "entry count": (file_bytes(counts=(0, HUGE)), "claims 0 tensors and 18446744073709551615"),
    "more entries than bytes": (file_bytes(counts=(0, 1000), data=b""), "ends inside its header"),
    "long key": (file_bytes([string("k", claimed=HUGE)]), "has a name of 18446744073709551615 bytes"),
    "long string": (file_bytes([entry("k", STRING, string("v", claimed=2**40))]), "ends inside its header"),
    "no utf-8": (file_bytes([entry("k", STRING, string(b"\xff\xfe"))]), "not UTF-8"),
    "unknown value type": (file_bytes([entry("k", 13, b"")]), "'k' has the unknown value type 13"),
    "array of arrays": (file_bytes([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 2))]), "unsupported value type 9"),
    "huge array": (
        file_bytes([entry("k", ARRAY, struct.pack("<IQ", U32, HUGE))]),
        "'k' claims 18446744073709551615 values",
    ),
    "huge array of strings": (
        file_bytes([entry("k", ARRAY, struct.pack("<IQ", STRING, 2**40))]),
        "'k' claims .* strings",
    ),
    "key twice": (file_bytes([entry("k", BOOL, b"\x01")] * 2), "key 'k' twice"),
    "alignment 3": (file_bytes([entry("general.alignment", U32, struct.pack("<I", 3))]), "alignment 3"),
    "alignment 0": (file_bytes([entry("general.alignment", U32, struct.pack("<I", 0))]), "alignment 0"),
    "alignment text": (file_bytes([entry("general.alignment", STRING, string("32"))]), "alignment '32'"),
    "tensor twice": (file_bytes(None, [tensor("t", (1,))] * 2), "tensor 't' twice"),
    "no dimensions": (file_bytes(None, [tensor("t", ())]), "'t' has 0 dimensions"),
    "2**32 - 1 dimensions": (file_bytes(None, [tensor("t", (1,), dimensions=2**32 - 1)]), "dimensions"),
    "empty tensor": (file_bytes(None, [tensor("t", (0, 4))]), "impossible shape"),
    "overflowing shape": (file_bytes(None, [tensor("t", (2**32, 2**32, 2**32))]), "impossible shape"),
    "unknown type": (file_bytes(None, [tensor("t", (4,), 99)]), "unsupported type number 99"),
    "part of a block": (file_bytes(None, [tensor("t", (33,), 2)]), "33 values a row are not a multiple of Q4_0's 32"),
    "unaligned": (file_bytes(None, [tensor("t", (4,), 0, 4)]), "not aligned to 32"),
    "past the end": (file_bytes(None, [tensor("t", (1024,))]), "past the end of the file"),
    "offset past the end": (file_bytes(None, [tensor("t", (1,), 0, 2**63)]), "past the end of the file"),
    "overlap": (file_bytes(None, [tensor("t", (16,)), tensor("u", (4,), 0, 32)]), "'t' and 'u' overlap"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_cost_an_error_and_no_memory(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match=message) as caught:
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    entries = [entry("a", U32, struct.pack("<I", 1)), entry("b", ARRAY, struct.pack("<IQ2I", U32, 2, 1, 2))]
    whole = file_bytes(entries, [tensor("t", (64,))])
    path = tmp_path / "x.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError):
            read_gguf(path)
    path.write_bytes(whole)
    assert read_gguf(path).tensors["t"].shape == (64,)
