"""What a release is made of, without compiling: the wheel, its bill of materials, the workflow that publishes."""

import json
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.tags import Tag, cpython_tags
from packaging.utils import parse_wheel_filename

from tools import release
from tools.locks import PYTHONS
from tools.sources import git
from tools.wheel import Abi, WheelError, all_abis, find_abis, wheel_name, write_wheel

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github/workflows/release.yml"
ABIS = [Abi("cp311", "cp311", Path("python3.11")), Abi("abi3", "cp312", Path("python3.13"))]
NAME = wheel_name("1.0", ABIS, "manylinux_2_34_x86_64")
FILES = {
    "redoubt-1.0.dist-info/METADATA": b"Name: redoubt\n",
    "redoubt-1.0.dist-info/RECORD": b"of another file",
    "redoubt-1.0.dist-info/WHEEL": b"of another file",
    "kernels/_native.abi3.so": b"\x7fELF",
    "app/__init__.py": b"",
}


@pytest.mark.parametrize(
    ("python", "platform", "fits"),
    [
        *(((3, minor), "manylinux_2_36_x86_64", True) for minor in PYTHONS),
        ((3, 20), "manylinux_2_34_x86_64", True),
        ((3, 10), "manylinux_2_36_x86_64", False),
        ((3, 13), "manylinux_2_31_x86_64", False),
        ((3, 13), "manylinux_2_36_aarch64", False),
    ],
)
def test_one_file_is_for_all_our_pythons(python: tuple[int, int], platform: str, fits: bool) -> None:
    system, _, machine = platform.removeprefix("manylinux_2_").partition("_")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(int(system), 16, -1)]
    accepted = set(cpython_tags(python, platforms=platforms))
    assert bool(parse_wheel_filename(NAME)[3] & accepted) is fits


def test_a_free_threaded_python_takes_no_file_for_the_others() -> None:
    assert not parse_wheel_filename(NAME)[3] & set(cpython_tags((3, 14), ["cp314t"], ["manylinux_2_36_x86_64"]))


def test_the_file_depends_on_its_contents_alone(tmp_path: Path) -> None:
    write_wheel(tmp_path / "a" / NAME, FILES, 1_700_000_000)
    write_wheel(tmp_path / "b" / NAME, dict(reversed(FILES.items())), 1_700_000_000)
    assert (tmp_path / "a" / NAME).read_bytes() == (tmp_path / "b" / NAME).read_bytes()


def test_the_file_says_what_it_has(tmp_path: Path) -> None:
    write_wheel(tmp_path / NAME, FILES, 1_700_000_000)
    with zipfile.ZipFile(tmp_path / NAME) as wheel:
        names = wheel.namelist()
        contents = {name: wheel.read(name) for name in names}
        modes = {entry.filename: entry.external_attr >> 16 for entry in wheel.infolist()}
    assert set(names) == set(FILES)
    assert names[-1] == "redoubt-1.0.dist-info/RECORD"
    assert modes["kernels/_native.abi3.so"] == 0o100755
    assert modes["app/__init__.py"] == 0o100644
    rows = [row.split(",") for row in contents.pop(names[-1]).decode().splitlines()]
    assert rows.pop() == [names[-1], "", ""]
    digests = {name: urlsafe_b64encode(sha256(text).digest()).decode().rstrip("=") for name, text in contents.items()}
    assert {name: (digest, int(size)) for name, digest, size in rows} == {
        name: (f"sha256={digest}", len(contents[name])) for name, digest in digests.items()
    }
    lines = contents["redoubt-1.0.dist-info/WHEEL"].decode().splitlines()
    tags = {Tag(*line.removeprefix("Tag: ").split("-")) for line in lines if line.startswith("Tag: ")}
    assert tags == parse_wheel_filename(NAME)[3]


def test_each_abi_is_built_by_a_python_that_has_it() -> None:
    (here,) = find_abis([sys.executable, "/no/such/python"])
    older = sys.version_info < (3, 12)
    assert here.tag == ("cp311" if older else "abi3")
    with pytest.raises(WheelError, match=f"no Python {'3.12 or newer' if older else '3.11'} with its headers"):
        all_abis(sys.executable)


def test_the_wheels_bill_of_materials_has_what_is_compiled_in_and_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "CMakeFiles/4.4.4").mkdir(parents=True)
    (tmp_path / "CMakeFiles/4.4.4/CMakeCXXCompiler.cmake").write_text('set(CMAKE_CXX_COMPILER_VERSION "12.2.0")\n')
    found = {one.purl.to_string() for one in release.wheel_parts(tmp_path) if one.purl is not None}
    assert "pkg:generic/libstdc%2B%2B@12.2.0" in found
    assert any(re.fullmatch(r"pkg:github/tessil/robin-map@v\d+\.\d+\.\d+", purl) for purl in found)
    names = {purl.partition("@")[0] for purl in found}
    pages = json.loads((ROOT / "app/interface/web/package.json").read_text())["dependencies"]
    assert {"pkg:pypi/nanobind", "pkg:pypi/ray", "pkg:pypi/numpy"} <= names
    assert {f"pkg:npm/{name}" for name in pages} <= names
    assert "pkg:npm/vite" not in names


def test_both_clones_of_a_check_have_the_same_commit_and_nothing_built(tmp_path: Path) -> None:
    commit = git("rev-parse", "HEAD")
    for name in ("a", "another/and/deeper"):
        with release.clone(tmp_path / name, commit) as folder:
            said = [
                subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True).stdout.strip()
                for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
            ]
            assert said == [commit, ""]
            assert list(folder.glob("kernels/_native*.so")) == []
            assert not (folder / "app/interface/web/dist").exists()
        assert not folder.exists()


def steps() -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(WORKFLOW.read_text())["jobs"].values() for step in job["steps"]]


def test_the_workflow_takes_actions_by_their_commits() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW.read_text())
    assert len(used) == sum("uses" in step for step in steps())
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_the_workflow_may_do_no_more_than_each_job_needs() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "make": {"contents": "read"},
        "pypi": {"id-token": "write"},
        "github": {"contents": "write", "id-token": "write", "attestations": "write"},
    }
    assert "secrets." not in WORKFLOW.read_text()


def test_the_workflow_makes_what_make_can() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(" ".join(re.findall(r"^([a-z][\w -]*):(?!=)", makefile, flags=re.MULTILINE)).split())
    made = {word for step in steps() for word in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))}
    assert made == {"release", "release-check"}
    assert made <= targets
