"""Writes and reads requirements/*.lock, others' packages for pip: exact versions, and hashes of their wheels.

Run by `make lock`; uv resolves. Knows nothing of what the project needs: pyproject.toml and verify/pyproject.toml do.
"""

import argparse
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "build": ("What the native engine is built with.", ()),
    "wheel": ("What `make wheel` needs beside build.lock.", ("build",)),
    "serve": ("What serving needs.", ()),
    "postgres": ("What accounts in Postgres need beside serve.lock.", ("serve",)),
    "traces": ("What traces need beside serve.lock.", ("serve",)),
    "verify": ("What redoubt-verify needs.", ()),
    "image": ("What `make image` needs beside serve.lock.", ("serve",)),
    "check": ("What `make check` needs beside serve.lock.", ("serve",)),
    "test": (
        "What tests and lint need beside the other locks, but for torch: tools/locks.py says why.",
        ("build", "wheel", "serve", "postgres", "traces", "verify", "image", "check"),
    ),
    "lock": ("What `make lock` needs.", ()),
}
"""What each file is for, and the files that are installed before or with it, whose packages it leaves out."""
HEADER = """\
# {}
# For `pip install --require-hashes --no-deps`: CPython 3.11 to 3.14 on x86-64 Linux.
# Written by `make lock` (`make lock UPGRADE=1` looks for newer versions); do not edit by hand.
"""
PYTHONS = (11, 12, 13, 14)
"""Of Python 3: from pyproject.toml's oldest to the newest that Ray has wheels for."""
ENVIRONMENT = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
# A version of torch is another file on an index of CPU builds than on one of CUDA builds, which need more packages. The
# hashes of both would not do: pip takes what an index lists with such a hash before a local file, so that a machine
# with a local CPU build would fetch the CUDA build. The tests alone need it: pip installs it after what is locked.
UNHASHED = re.compile(r"torch|nvidia-.*|cuda-.*|triton")


def needs(root: Path = ROOT) -> dict[str, list[str]]:
    """The requirements of each part."""
    project, verifier = (
        tomllib.loads((root / name).read_text())["project"] for name in ("pyproject.toml", "verify/pyproject.toml")
    )
    extras = project["optional-dependencies"]
    parts = {name: extras.get(name, []) for name in PARTS}
    parts["serve"], parts["verify"] = project["dependencies"], verifier["dependencies"]
    parts["test"] = [*extras["test"], *extras["parity"], *extras["lint"]]
    return parts


def lock_lines(packages: Iterable[dict[str, Any]], exclude: set[str]) -> list[str]:
    """Sorted requirements, with markers where Pythons differ, and the hashes of all wheels that one can install.

    Args:
        packages: those of a pylock.toml (PEP 751).
        exclude: names that get no line.
    """
    lines = []
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        name, version, marker = package["name"], package["version"], package.get("marker")
        wanted = {python for python in PYTHONS if marker is None or Marker(marker).evaluate(environment(python))}
        if not wanted or name in exclude or UNHASHED.fullmatch(name):
            continue
        wheels = [(wheel, _pythons(wheel["url"].rpartition("/")[2])) for wheel in package.get("wheels", ())]
        for python in sorted(wanted.difference(*(pythons for _, pythons in wheels))):
            raise SystemExit(f"{name} {version} has no wheel for CPython 3.{python} on x86-64 Linux")
        requirement = f"{name}=={version}" + ("" if len(wanted) == len(PYTHONS) else f" ; {marker}")
        hashes = sorted(wheel["hashes"]["sha256"] for wheel, pythons in wheels if pythons)
        lines.append(" \\\n    ".join([requirement, *(f"--hash=sha256:{sha256}" for sha256 in hashes)]))
    return lines


def read_lock(path: Path) -> list[tuple[Requirement, list[str]]]:
    """Its requirements, each with its hashes."""
    lines = (line for line in path.read_text().replace("\\\n", "").splitlines() if not line.startswith("#"))
    parts = (re.split(r"\s+--hash=sha256:", line) for line in lines)
    return [(Requirement(requirement), hashes) for requirement, *hashes in parts]


def environment(python: int) -> dict[str, str]:
    """What markers are evaluated with, for CPython 3.`python` on x86-64 Linux."""
    return {**ENVIRONMENT, "python_version": f"3.{python}", "python_full_version": f"3.{python}.0"}


def _pythons(file_name: str) -> set[int]:
    """Which of our Pythons, with the GIL and glibc, can install that wheel."""
    found: set[int] = set()
    for tag in parse_wheel_filename(file_name)[3]:
        version = re.fullmatch(r"cp3(\d+)", tag.interpreter)
        if tag.platform != "any" and not re.fullmatch(r"(many)?linux.*_x86_64", tag.platform):
            continue
        if tag.interpreter == "py3":
            found |= set(PYTHONS)
        elif version and tag.abi == "abi3":
            found |= {python for python in PYTHONS if python >= int(version[1])}
        elif version and tag.abi in (tag.interpreter, "none"):
            found |= {int(version[1])}.intersection(PYTHONS)
    return found


def _resolve(requirements: Iterable[str], output: Path, *options: str) -> None:
    """Writes what uv chooses for these, on any platform and Python, to a file for pip or to a pylock.*.toml."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", f"3.{PYTHONS[0]}", *options]
    command += ["--no-header", "--no-annotate", "--output-file", str(output), "-"]
    subprocess.run(command, input="\n".join(requirements), text=True, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Writes all files."""
    parser = argparse.ArgumentParser(description="Write requirements/*.lock anew.")
    parser.add_argument("--upgrade", action="store_true", help="look for newer versions")
    upgrade = parser.parse_args().upgrade
    parts = needs()
    with tempfile.TemporaryDirectory(prefix="redoubt-lock-") as work:
        everything = Path(work, "everything.txt")  # uv keeps to versions that it finds there
        if not upgrade:
            everything.write_text("".join(path.read_text() for path in sorted(LOCKS.glob("*.lock"))))
        _resolve(chain.from_iterable(parts.values()), everything)
        packages = {}
        for name, requirements in parts.items():
            part = Path(work, f"pylock.{name}.toml")
            _resolve(requirements, part, "--constraint", str(everything))
            packages[name] = tomllib.loads(part.read_text())["packages"]
    for name, (title, bases) in PARTS.items():
        lines = lock_lines(packages[name], exclude={package["name"] for base in bases for package in packages[base]})
        (LOCKS / f"{name}.lock").write_text(HEADER.format(title) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
