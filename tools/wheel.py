"""Builds the wheel for x86-64 Linux: `python -m tools.wheel OUT`, or `make wheel`.

One file for every Python that we support. A Python older than 3.12 needs a native module of its own; from there on one
for the stable ABI serves them all, and each Python loads the one whose name it knows. auditwheel says which systems the
file runs on. The same commit, compiler and tools give the same bytes, in whatever folder. Knows nothing of installing.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tools.sources import PAGES, ROOT, copy_sources, git

STABLE = "abi3"
STABLE_SINCE = 12
"""nanobind's modules for the stable ABI are for Python 3.12 and newer."""
OLDEST = 11
CANDIDATES = ("python3", *(f"python3.{minor}" for minor in range(OLDEST, 15)))
_LINK = "-static-libstdc++ -Wl,--exclude-libs,ALL"
"""The C++ library comes along, and is seen by nobody else in the process: only the C library's version counts then.

GCC's own library does not: that of GCC 12 would ask for glibc 2.35, and what is there does as well."""
_FORGOTTEN = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_ARGS", "CMAKE_GENERATOR", "SKBUILD_CMAKE_ARGS")
"""Variables with which a machine would change what is built."""
_PROBE = """
import json, sys, sysconfig
from pathlib import Path
is_ours = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
print(json.dumps([is_ours and has_headers, sys.version_info[1], sys.executable]))
"""


class WheelError(RuntimeError):
    """A step failed; the message says which, and how it ended."""


@dataclass(frozen=True, slots=True)
class Abi:
    """A native module's ABI and the oldest Python for it, as a wheel's name has them; and what builds it."""

    tag: str
    python_tag: str
    python: Path

    @property
    def about(self) -> str:
        """The Pythons that it is for."""
        version = f"3.{self.python_tag.removeprefix('cp3')}"
        return f"{version} and newer" if self.tag == STABLE else version


def run(*command: str | Path, environment: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """What a program prints. Raises WheelError with the end of its output."""
    done = subprocess.run(
        [str(word) for word in command], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()[-30:]
        raise WheelError("\n".join([f"{Path(str(command[0])).name} ended with status {done.returncode}:", *lines]))
    return done.stdout


def find_abis(candidates: Sequence[str]) -> list[Abi]:
    """The ABIs that these interpreters can build for, each by the first of them, the oldest first."""
    found: dict[str, Abi] = {}
    for candidate in candidates:
        if (path := shutil.which(candidate)) is None:
            continue
        done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, check=False)
        if done.returncode != 0:  # a shim of a version that is not chosen
            continue
        usable, minor, executable = json.loads(done.stdout)
        if not usable or minor < OLDEST:
            continue
        tag, since = (STABLE, STABLE_SINCE) if minor >= STABLE_SINCE else (f"cp3{minor}", minor)
        found.setdefault(tag, Abi(tag, f"cp3{since}", Path(executable)))
    return sorted(found.values(), key=lambda abi: abi.python_tag)


def abis_and_missing(pythons: str) -> tuple[list[Abi], str]:
    """The ABIs that can be built for, and a sentence on those that can't; empty if all can.

    pythons: interpreters, with blanks between; none: this one and those of PATH.
    """
    abis = find_abis(pythons.split() or [sys.executable, *CANDIDATES])
    wanted = {f"cp3{minor}": f"3.{minor}" for minor in range(OLDEST, STABLE_SINCE)}
    wanted[STABLE] = f"3.{STABLE_SINCE} or newer"
    missing = [about for tag, about in wanted.items() if tag not in {abi.tag for abi in abis}]
    if not missing:
        return abis, ""
    example = "PYTHONS='/path/to/python3.11 /path/to/python3.13'"
    return abis, f"there is no Python {' and no '.join(missing)} with its headers: make wheel {example}"


def all_abis(pythons: str) -> list[Abi]:
    """The ABIs of a whole wheel. Raises WheelError if one of them can't be built for."""
    abis, missing = abis_and_missing(pythons)
    if missing:
        raise WheelError(missing)
    return abis


def epoch() -> int:
    """The time of all files, in Unix seconds: SOURCE_DATE_EPOCH, or that of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))


def build_modules(abis: Sequence[Abi], folder: Path) -> list[Path]:
    """The native module of each ABI. The engine's own files are compiled once: they know no Python."""
    folder.mkdir(parents=True, exist_ok=True)
    nanobind = run(sys.executable, "-m", "nanobind", "--cmake_dir").strip()
    shortened = [f"-ffile-prefix-map={ROOT}=.", f"-ffile-prefix-map={Path(nanobind).parent}=nanobind"]
    environment = {name: value for name, value in os.environ.items() if name not in _FORGOTTEN}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["LC_ALL"] = "C.UTF-8"
    modules: list[Path] = []
    for abi in abis:
        out = folder / abi.tag
        shutil.rmtree(out, ignore_errors=True)
        (folder / "CMakeCache.txt").unlink(missing_ok=True)  # what it found out of another Python
        command: list[str | Path] = [
            "cmake",
            "-S",
            ROOT / "kernels",
            "-B",
            folder,
            "-G",
            "Ninja",
            "-DREDOUBT_TESTING=OFF",
        ]
        command += [f"-DPython_EXECUTABLE={abi.python}", f"-Dnanobind_ROOT={nanobind}"]
        command += [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={out}", f"-DCMAKE_MODULE_LINKER_FLAGS={_LINK}"]
        run(*command, f"-DCMAKE_CXX_FLAGS={' '.join(shortened)}", environment=environment)
        run("cmake", "--build", folder, "--", "--quiet", environment=environment)
        modules += out.glob("_native.*.so")
    return modules


def python_files(work: Path) -> dict[str, bytes]:
    """What is in the wheel beside native modules, by its path, as pyproject.toml says, with the metadata."""
    if not (PAGES / "chat.html").exists():
        raise WheelError("the web pages are not built: make page")
    copy_sources(work / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--config-settings=wheel.cmake=false"]
    command += ["--config-settings=wheel.py-api=py3", "--wheel-dir"]  # of a file without native modules
    run(*command, work / "pure", work / "source")
    with zipfile.ZipFile(next((work / "pure").glob("redoubt-*.whl"))) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}


def wheel_name(version: str, abis: Sequence[Abi], platform: str) -> str:
    """As PEP 427 has it, with all tags."""
    pythons, tags = ".".join(abi.python_tag for abi in abis), ".".join(abi.tag for abi in abis)
    return f"redoubt-{version}-{pythons}-{tags}-{platform}.whl"


def write_wheel(path: Path, files: Mapping[str, bytes], modified: int) -> None:
    """Writes the file that the path's name promises: WHEEL and RECORD anew, sorted, one time for all.

    files: by their paths in the wheel. modified: Unix seconds.
    """
    _, version, *tags = path.name.removesuffix(".whl").split("-")
    information = f"redoubt-{version}.dist-info"
    lines = ["Wheel-Version: 1.0", "Generator: redoubt tools.wheel", "Root-Is-Purelib: false"]
    lines += [f"Tag: {'-'.join(tag)}" for tag in product(*(part.split(".") for part in tags))]
    contents = {**files, f"{information}/WHEEL": ("\n".join(lines) + "\n").encode()}
    record = f"{information}/RECORD"
    contents.pop(record, None)
    names = sorted(contents, key=lambda name: (name.startswith(information), name))
    rows = [f"{name},sha256={_digest(contents[name])},{len(contents[name])}\n" for name in names]
    contents[record] = ("".join(rows) + f"{record},,\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name in [*names, record]:
            entry = zipfile.ZipInfo(name, time.gmtime(max(modified, 315532800))[:6])  # a zip's times begin in 1980
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            entry.create_system = 3
            wheel.writestr(entry, contents[name], compresslevel=9)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def platform_of(wheel: Path) -> str:
    """The oldest manylinux tag that auditwheel gives it. Raises WheelError for what no other machine could load."""
    report = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel))
    tag = str(report["overall_tag"])
    if not re.fullmatch(r"manylinux_2_\d+_x86_64", tag):
        raise WheelError(f"auditwheel gives the wheel {tag}, which is no manylinux: {json.dumps(report)}")
    return tag


def build(out: Path, folder: Path, abis: Sequence[Abi]) -> Path:
    """Writes the wheel into `out`, in place of a former one, and returns its path.

    folder: for compiled files, which a later build takes again. Raises WheelError.
    """
    modules = build_modules(abis, folder)
    with tempfile.TemporaryDirectory(prefix="redoubt-wheel-") as temporary:
        work = Path(temporary)
        files = python_files(work)
        (version,) = re.findall(r"^redoubt-(.+)\.dist-info/METADATA$", "\n".join(files), flags=re.MULTILINE)
        files |= {f"kernels/{module.name}": module.read_bytes() for module in modules}
        draft = work / wheel_name(version, abis, "linux_x86_64")
        write_wheel(draft, files, epoch())
        wheel = out / wheel_name(version, abis, platform_of(draft))
        for former in out.glob("redoubt-*.whl"):
            former.unlink()
        write_wheel(wheel, files, epoch())
    if platform_of(wheel) not in wheel.name:
        raise WheelError(f"auditwheel gives {wheel.name} the tag {platform_of(wheel)}")
    return wheel


def main() -> None:
    """Builds it for the Pythons that are there, and says which and where."""
    parser = argparse.ArgumentParser(description="Build the wheel for x86-64 Linux.")
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "build/dist")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/wheel", help="of compiled files")
    parser.add_argument("--pythons", default="", help="interpreters to build with (default: those on PATH)")
    options = parser.parse_args()
    abis, missing = abis_and_missing(options.pythons)
    if not abis:
        sys.exit(f"make wheel: {missing}")
    if missing:
        print(f"make wheel: {missing}", file=sys.stderr)
    try:
        wheel = build(options.out.absolute(), options.folder.absolute(), abis)
        print(run(sys.executable, "-m", "auditwheel", "show", wheel).strip())
    except WheelError as error:
        sys.exit(f"make wheel: {error}")
    pythons = ", ".join(abi.about for abi in abis)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    print(f"{wheel}\nfor Python {pythons}; {wheel.stat().st_size / 1e6:.1f} MB, sha256 {digest}")


if __name__ == "__main__":
    main()
