"""The native module reads files that others made: it is built so that a bug there ends the process."""

import struct
from pathlib import Path

import pytest

from kernels import _native

DYNAMIC, GNU_STACK, GNU_RELRO = 2, 0x6474E551, 0x6474E552
EXECUTABLE = 1
FLAGS, FLAGS_1 = 30, 0x6FFFFFFB
BIND_NOW, NOW = 8, 1


@pytest.fixture(scope="module")
def image() -> bytes:
    assert _native.__file__ is not None
    return Path(_native.__file__).read_bytes()


def segments(image: bytes) -> dict[int, tuple[int, int, int]]:
    """Flags, begin and bytes in the file of each ELF segment, by type ("System V ABI", chapter 5, x86-64)."""
    (offset,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    found = {}
    for i in range(count):
        kind, flags, begin, _, _, length = struct.unpack_from("<IIQQQQ", image, offset + i * size)
        found[kind] = (flags, begin, length)
    return found


def test_stacks_are_protected(image: bytes) -> None:
    assert b"\0__stack_chk_fail\0" in image


def test_copies_of_known_sizes_are_checked(image: bytes) -> None:
    assert b"_chk\0" in image.replace(b"__stack_chk_fail", b"")


def test_stacks_are_not_executable(image: bytes) -> None:
    assert not segments(image)[GNU_STACK][0] & EXECUTABLE


def test_addresses_of_functions_are_read_only(image: bytes) -> None:
    assert GNU_RELRO in segments(image)
    _, begin, length = segments(image)[DYNAMIC]
    entries = dict(struct.iter_unpack("<QQ", image[begin : begin + length]))
    assert entries.get(FLAGS, 0) & BIND_NOW or entries.get(FLAGS_1, 0) & NOW
