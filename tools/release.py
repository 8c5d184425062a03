"""Makes all that a release has, in one folder: `python -m tools.release OUT`, or `make release`.

The wheel, the image as an OCI layout in a tar, a bill of materials of each, and SHA256SUMS. With --check it does so in
two fresh clones of the last commit, and compares the bytes. Publishes nothing: .github/workflows/release.yml does.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nanobind  # type: ignore[import-untyped]
from cyclonedx.model.component import Component, ComponentType
from packageurl import PackageURL

from kuberay.image import build as image
from kuberay.image.debian import DebianError
from kuberay.image.locks import LockError
from kuberay.image.root_files import BuildError
from tools import bill_of_materials, wheel
from tools.bill_of_materials import part
from tools.locks import LOCKS, read_lock
from tools.sources import ROOT, git

BUILD = ROOT / "build"
PARTS = ("wheel", "image")


def wheel_parts(compiled: Path) -> list[Component]:
    """What is in the wheel's native modules and pages, and the packages that it needs.

    compiled: the folder of its compiled files, which says by which compiler.
    """
    (compiler,) = compiled.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")
    (gcc,) = re.findall(r'^set\(CMAKE_CXX_COMPILER_VERSION "(.+)"\)', compiler.read_text(), flags=re.MULTILINE)
    table = Path(nanobind.include_dir()).parent / "ext/robin_map/include/tsl/robin_growth_policy.h"
    robin_map = re.findall(r"define TSL_RH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", table.read_text())
    parts = [
        part(PackageURL("generic", None, "libstdc++", gcc)),
        part(PackageURL("pypi", None, "nanobind", nanobind.__version__)),
        part(PackageURL("github", "tessil", "robin-map", f"v{'.'.join(robin_map)}")),
    ]
    packages = json.loads((ROOT / "app/interface/web/package-lock.json").read_text())["packages"]
    for path, package in sorted(packages.items()):
        if path and not package.get("dev") and not package.get("optional"):
            namespace, _, name = path.removeprefix("node_modules/").rpartition("/")
            parts.append(part(PackageURL("npm", namespace or None, name, package["version"])))
    for requirement, hashes in read_lock(LOCKS / "serve.lock"):
        version = str(requirement.specifier).removeprefix("==")
        parts.append(part(PackageURL("pypi", None, requirement.name, version), hashes[0] if len(hashes) == 1 else None))
    return parts


def pack(layout: Path, tar: Path, modified: int) -> None:
    """An OCI layout as one file, the same from the same files. modified: Unix seconds."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(layout.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(layout)))
            entry.mtime, entry.mode = modified, 0o755 if path.is_dir() else 0o644
            if path.is_dir():
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(entry, file)


def make(out: Path, pythons: str, parts: list[str]) -> None:
    """Makes these parts in `out`, in place of what was there. Raises WheelError, BuildError, DebianError, LockError."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    modified = wheel.epoch()
    if "wheel" in parts:
        built = wheel.build(out, BUILD / "wheel", wheel.all_abis(pythons))
        version = built.name.split("-")[1]
        bill = out / f"redoubt-{version}-wheel.cdx.json"
        bill_of_materials.write(bill, ComponentType.LIBRARY, version, wheel_parts(BUILD / "wheel"), modified)
    if "image" in parts:
        folder, cache = BUILD / "image", BUILD / "image-cache"
        shutil.rmtree(folder, ignore_errors=True)
        image.build(folder, cache, cache / "ccache")
        version = str(json.loads((folder / "sbom.cdx.json").read_text())["metadata"]["component"]["version"])
        pack(folder / "oci", out / f"redoubt-{version}-image.oci.tar", modified)
        shutil.copy(folder / "sbom.cdx.json", out / f"redoubt-{version}-image.cdx.json")
        shutil.copy(folder / "digest", out / f"redoubt-{version}-image.digest")
    sums = [f"{sha256(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums))


def sha256(path: Path) -> str:
    """The file's hash in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def clone(folder: Path, commit: str) -> Iterator[Path]:
    """A commit in a folder of its own, with this tree's environment and downloads, and nothing built."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", "--detach", commit], check=True)
    (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
    cache = BUILD / "image-cache"
    (folder / "build/image-cache").mkdir(parents=True)
    for downloaded in cache.glob("*") if cache.exists() else ():
        if downloaded.name != "ccache":
            (folder / "build/image-cache" / downloaded.name).symlink_to(downloaded)
    yield folder
    shutil.rmtree(folder)


def sums_of_two_clones(pythons: str, parts: list[str]) -> list[str]:
    """SHA256SUMS of a release made in each of two folders."""
    found = []
    commit = git("rev-parse", "HEAD")  # of both: it takes long enough for another one to come
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=BUILD) as temporary:  # where downloads can be hard-linked
        for name in ("a", "another/and/deeper"):
            with clone(Path(temporary) / name, commit) as folder:
                command = ["make", "--no-print-directory", "-C", str(folder), "release", f"PYTHONS={pythons}"]
                subprocess.run([*command, f"ARGS=--parts {','.join(parts)}"], check=True)
                found.append((folder / "build/release/SHA256SUMS").read_text())
    return found


def main() -> None:
    """Makes it once, or twice with --check."""
    parser = argparse.ArgumentParser(description="Make all that a release has.")
    parser.add_argument("out", type=Path, nargs="?", default=BUILD / "release")
    parser.add_argument("--pythons", default="", help="interpreters to build the wheel with (default: those on PATH)")
    parser.add_argument("--parts", default=",".join(PARTS), help="of %(default)s")
    parser.add_argument("--check", action="store_true", help="make it in two clones of the last commit, and compare")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--parts: of {','.join(PARTS)}")
    try:
        if not options.check:
            make(options.out.absolute(), options.pythons, parts)
            sys.stdout.write((options.out / "SHA256SUMS").read_text())
            return
        if git("status", "--porcelain"):
            sys.exit("make release-check: it compares what is committed, and there are changes: commit them first")
        first, second = sums_of_two_clones(options.pythons, parts)
    except (wheel.WheelError, BuildError, DebianError, LockError) as error:
        sys.exit(f"make release: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"make release-check: {error}")
    if first != second:
        sys.exit(f"make release-check: the two differ:\n{first}\n{second}")
    print(f"Made twice, in different folders: the same bytes\n{first}", end="")


if __name__ == "__main__":
    main()
