"""Includes of the engine point down: the folders of `kernels/` in their order, written in one place."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernels

FOLDER = Path(kernels.__file__).parent
LAYERS = (
    ("testing",),
    ("bindings",),
    ("step",),
    ("model", "sampling", "attention", "delta", "linear", "rounding"),
    ("weights", "ops"),
    ("contract",),
    ("machine",),
    ("simd",),
)
"""The highest first: files include their own folder, and those of lower layers."""
LEVELS = {folder: level for level, layer in enumerate(reversed(LAYERS)) for folder in layer}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"/]+)/[^"]+"', re.MULTILINE)


def wrong_includes(folder: Path) -> Iterator[str]:
    for file in sorted((*folder.rglob("*.h"), *folder.rglob("*.cc"))):
        own = file.relative_to(folder).parts[0]
        for included in INCLUDE.findall(file.read_text()):
            if included != own and LEVELS[included] >= LEVELS[own]:
                yield f"{file.relative_to(folder)} includes {included}/"


def test_includes_point_down() -> None:
    assert set(LEVELS) == {path.parent.name for path in FOLDER.glob("*/*.cc")} | {"simd"}
    assert list(wrong_includes(FOLDER)) == []


@pytest.mark.parametrize(("own", "included"), [("machine", "linear"), ("attention", "model"), ("ops", "weights")])
def test_an_include_upward_or_across_is_found(own: str, included: str, tmp_path: Path) -> None:
    (tmp_path / own).mkdir()
    (tmp_path / own / "a.cc").write_text(f'#include <vector>\n#include "simd/inline.h"\n#include "{included}/b.h"\n')
    assert list(wrong_includes(tmp_path)) == [f"{own}/a.cc includes {included}/"]
