"""The image's locks: packages.lock (Debian), wheels.lock (Python), and build.lock (Python, to build our packages with).

Reads and writes the files only. Knows nothing of mirrors, of downloading or of the image.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
PACKAGES, WHEELS, BUILD_WHEELS = (FOLDER / name for name in ("packages.lock", "wheels.lock", "build.lock"))

PACKAGES_HEADER = """\
# Debian 13 packages: name, version, architecture, SHA-256 of the .deb, and what has it: the image, the build, or both.
# Written by `make image-lock`; do not edit by hand.
"""
WHEELS_HEADER = """\
# Python packages for Python 3.13 on x86-64 Linux with their hashes, for `pip install --require-hashes --no-deps`.
# Written by `make image-lock` from requirements/*.lock and pyproject.toml; do not edit by hand.
"""

Purpose = Literal["image", "build", "both"]
_WHEEL = re.compile(r"([a-z0-9][a-z0-9-]*)==(\S+) --hash=sha256:([0-9a-f]{64})")


class LockError(ValueError):
    """A lock file has a line that is not one of a lock."""


@dataclass(frozen=True, slots=True, order=True)
class Deb:
    """One Debian package."""

    name: str
    version: str
    architecture: str
    sha256: str
    purpose: Purpose

    @property
    def file_name(self) -> str:
        """What apt-get calls the file: the epoch's colon is escaped."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


@dataclass(frozen=True, slots=True, order=True)
class Wheel:
    """One Python package: its normalized name, version, and the hash of the one wheel that fits the image."""

    name: str
    version: str
    sha256: str


def read_packages(path: Path = PACKAGES) -> list[Deb]:
    """The Debian packages. Raises LockError."""
    debs = []
    for line in _lines(path):
        match line.split():
            case [name, version, architecture, sha256, ("image" | "build" | "both") as purpose] if len(sha256) == 64:
                debs.append(Deb(name, version, architecture, sha256, purpose))
            case _:
                raise LockError(f"{path.name}: not a package: {line}")
    return debs


def read_wheels(path: Path = WHEELS) -> list[Wheel]:
    """The Python packages. Raises LockError."""
    wheels = []
    for line in _lines(path):
        match = _WHEEL.fullmatch(line)
        if match is None:
            raise LockError(f"{path.name}: not a wheel: {line}")
        wheels.append(Wheel(*match.groups()))
    return wheels


def write_packages(debs: Iterable[Deb], path: Path = PACKAGES) -> None:
    """Sorted by name."""
    lines = [f"{d.name} {d.version} {d.architecture} {d.sha256} {d.purpose}\n" for d in sorted(debs)]
    path.write_text(PACKAGES_HEADER + "".join(lines))


def write_wheels(wheels: Iterable[Wheel], path: Path) -> None:
    """Sorted by name."""
    lines = [f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in sorted(wheels)]
    path.write_text(WHEELS_HEADER + "".join(lines))


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
