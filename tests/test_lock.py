"""requirements/*.lock: each part has all that it needs, with versions and hashes, on every Python that we support."""

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.needed_packages import needed
from tools.locks import HEADER, LOCKS, PARTS, PYTHONS, UNHASHED, environment, lock_lines, needs, read_lock

ANY = "py3-none-any"
OURS = [f"cp3{python}-cp3{python}-manylinux_2_28_x86_64" for python in PYTHONS]


def package(name: str, *tags: str, **more: str) -> dict[str, Any]:
    """A package of a pylock.toml; the hash of a wheel is its tag."""
    wheels = [
        {"url": f"https://files/{name.replace('-', '_')}-1.0-{tag}.whl", "hashes": {"sha256": tag}} for tag in tags
    ]
    return {"name": name, "version": "1.0", "wheels": wheels, "sdist": {"hashes": {"sha256": "source"}}, **more}


def test_hashes_are_those_of_the_wheels_for_our_pythons() -> None:
    stable, others = (
        "cp38-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
        [
            "cp310-cp310-manylinux_2_28_x86_64",
            "cp313-cp313t-manylinux_2_28_x86_64",
            "cp311-cp311-manylinux_2_28_aarch64",
            "cp311-cp311-musllinux_1_2_x86_64",
            "cp311-cp311-win_amd64",
            "pp311-pypy311_pp73-manylinux_2_28_x86_64",
        ],
    )
    lines = lock_lines([package("b", *others, *OURS), package("a", stable, *others), package("c", ANY)], set())
    expected = {"a": [stable], "b": OURS, "c": [ANY]}
    assert lines == [
        " \\\n    ".join([f"{name}==1.0", *(f"--hash=sha256:{tag}" for tag in tags)]) for name, tags in expected.items()
    ]


def test_markers_stand_where_pythons_differ() -> None:
    packages = [
        package("everywhere", ANY, marker="sys_platform != 'win32' and python_full_version >= '3.11'"),
        package("nowhere", ANY, marker="sys_platform == 'win32'"),
        package("somewhere", *OURS[2:], marker="python_full_version >= '3.13'"),
    ]
    heads = [line.partition(" \\")[0] for line in lock_lines(packages, set())]
    assert heads == ["everywhere==1.0", "somewhere==1.0 ; python_full_version >= '3.13'"]


def test_what_has_no_wheel_for_one_of_our_pythons_is_no_lock() -> None:
    with pytest.raises(SystemExit, match=r"old 1\.0 has no wheel for CPython 3\.14"):
        lock_lines([package("old", *OURS[:-1])], set())


def test_torch_and_its_cuda_packages_have_no_lines() -> None:
    names = ["torch", "nvidia-cublas", "cuda-toolkit", "triton", "networkx", "redoubt"]
    lines = lock_lines((package(name, ANY) for name in names), exclude={"redoubt"})
    assert [line.partition("==")[0] for line in lines] == ["networkx"]


def test_lock_files_are_as_written() -> None:
    """Versions and hashes only, so that pip's configuration alone says where files come from."""
    assert {path.name for path in LOCKS.iterdir()} == {f"{name}.lock" for name in PARTS}
    line = re.compile(
        r"[a-z0-9-]+==[\w.]+( ; python_full_version [<>=]+ '[\d.*]+')?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    )
    for name, (title, _) in PARTS.items():
        header = HEADER.format(title)
        text = (LOCKS / f"{name}.lock").read_text()
        assert text.startswith(header)
        assert line.sub("", text.removeprefix(header)) == ""


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_what_it_needs_and_no_more(name: str, python: int) -> None:
    def versions(part: str) -> dict[str, str]:
        lines = [one for one, _ in read_lock(LOCKS / f"{part}.lock")]
        here = [one for one in lines if one.marker is None or one.marker.evaluate(environment(python))]
        found = {one.name: str(one.specifier).removeprefix("==") for one in here}
        assert len(found) == len(here)
        return found

    own, before = versions(name), [versions(base) for base in PARTS[name][1]]
    both = {key: version for part in (*before, own) for key, version in part.items()}
    wanted = {one for one in needed(needs()[name], python) if not UNHASHED.fullmatch(one)}
    assert set(own) == wanted.difference(*before)
    assert wanted <= set(both)
    for requirement in map(Requirement, needs()[name]):
        if requirement.marker is not None and not requirement.marker.evaluate(environment(python)):
            continue
        assert UNHASHED.fullmatch(requirement.name) or requirement.specifier.contains(both[requirement.name])


def test_make_installs_locked_files_only_and_our_own_folder() -> None:
    makefile = Path(LOCKS.parent, "Makefile").read_text()
    commands = re.findall(r"\$\(PIP_INSTALL\) (.*)", makefile)
    assert len(commands) == 2
    assert commands[0].startswith("--require-hashes --no-deps ")
    assert commands[1].startswith("--no-build-isolation --editable $(or $(2),. --no-deps)")
    assert "pip install" not in makefile.replace("PIP_INSTALL = $(BIN)/python -m pip install", "")
