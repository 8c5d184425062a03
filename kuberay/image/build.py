"""Builds the OCI image without Docker: `python -m kuberay.image.build OUT`, or `make image`.

From the locks and the files that git tracks to OUT/oci (an OCI layout), OUT/sbom.cdx.json and OUT/digest. The same
commit gives the same digest; `--check` builds twice and compares. Needs mmdebstrap and umoci.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from kuberay.image import debian, locks
from kuberay.image.layer import write_layer
from kuberay.image.root_files import (
    ENVIRONMENT,
    USER_ID,
    WORKING_FOLDER,
    BuildError,
    build_root,
    build_wheels,
    locked_names,
)
from kuberay.image.sbom import write_sbom
from tools.sources import copy_sources, git

ROOT = Path(__file__).parents[2]
TAG = "redoubt"
MAX_UNPACKED_BYTES = 900_000_000
MAX_COMPRESSED_BYTES = 350_000_000


def fetch_wheels(cache: Path) -> tuple[list[Path], list[Path]]:
    """The files of wheels.lock with pip's own, and those of build.lock; pip checks their hashes."""
    folders = []
    for lock in (locks.WHEELS, locks.BUILD_WHEELS):
        folder = cache / f"{lock.stem}-{debian.sha256_of(lock)[:16]}"
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--require-hashes", "--only-binary", ":all:", "--python-version", "3.13", "--abi", "cp313"]
            command += ["--abi", "abi3", "--abi", "none", "--platform", "linux_x86_64"]
            for minor in range(5, 42):  # Debian 13 has glibc 2.41
                command += ["--platform", f"manylinux_2_{minor}_x86_64"]
            for old in ("manylinux1", "manylinux2010", "manylinux2014"):
                command += ["--platform", f"{old}_x86_64"]
            subprocess.run([*command, "--requirement", lock, "--dest", partial], check=True)
            partial.rename(folder)
        folders.append(sorted(folder.glob("*.whl")))
    wheels, build_wheels = folders
    return [*wheels, *(path for path in build_wheels if path.name.startswith("pip-"))], build_wheels


def pack(tar: Path, layout: Path, version: str, revision: str, epoch: int) -> str:
    """Makes an OCI layout of one layer, and returns the image's digest."""
    image = f"{layout}:{TAG}"
    created = subprocess.run(
        ["date", "--utc", "--iso-8601=seconds", f"--date=@{epoch}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    labels = {
        "title": "redoubt",
        "version": version,
        "revision": revision,
        "licenses": "Apache-2.0",
        "created": created,
    }
    labels["description"] = "A private chat service for CPUs"
    config = ["--config.user", f"{USER_ID}:{USER_ID}", "--config.entrypoint", "redoubt", "--clear", "config.cmd"]
    config += ["--config.workingdir", WORKING_FOLDER, "--architecture", "amd64", "--os", "linux", "--created", created]
    for name, value in ENVIRONMENT.items():
        config += ["--config.env", f"{name}={value}"]
    for name, value in labels.items():
        config += ["--config.label", f"org.opencontainers.image.{name}={value}"]
    for command in (
        ["init", "--layout", layout],
        ["new", "--image", image],
        ["raw", "add-layer", "--image", image, "--history.created", created, tar],
        ["config", "--image", image, "--no-history", *config],
        ["gc", "--layout", layout],
    ):
        subprocess.run(["umoci", *command], check=True, stdout=subprocess.DEVNULL)
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    return str(manifest["digest"])


def build(out: Path, cache: Path, ccache: Path | None) -> str:
    """Builds the image into the new folder `out`, and returns its digest.

    cache: downloaded packages; ccache: compiled files of former builds; None: everything is compiled.

    Raises DebianError, LockError, BuildError.
    """
    epoch = int(git("log", "-1", "--format=%ct"))
    revision = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    debs, wheels = locks.read_packages(), locks.read_wheels()
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=out) as temporary:
        work = Path(temporary)
        debian.fetch(debs, cache / "debs", work)
        wheel_files, build_wheel_files = fetch_wheels(cache)
        repository = work / "repository"
        debian.write_repository(debs, cache / "debs", repository)
        copy_sources(work / "source")
        names = {purpose: locked_names(debs, purpose) for purpose in ("image", "build")}
        ours = build_wheels(
            work / "source", build_wheel_files, names["build"], repository, epoch, ccache or work / "ccache", work
        )
        sbom = out / "sbom.cdx.json"
        write_sbom(sbom, (deb for deb in debs if deb.purpose != "build"), wheels, version, epoch)
        extra = work / "extra"
        shutil.copytree(work / "source/ray_configs", extra / WORKING_FOLDER[1:] / "ray_configs")
        shutil.copy(sbom, extra / WORKING_FOLDER[1:])
        root = build_root(ours, wheel_files, names["image"], repository, epoch, extra, work)
        layer = work / "layer.tar"
        unpacked = write_layer(root, layer, epoch)
        digest = pack(layer, out / "oci", version, revision, epoch)
    compressed = sum(path.stat().st_size for path in (out / "oci/blobs").rglob("*") if path.is_file())
    print(f"{out}/oci:{TAG} {digest}\n{unpacked / 1e6:.0f} MB unpacked, {compressed / 1e6:.0f} MB compressed")
    if unpacked > MAX_UNPACKED_BYTES or compressed > MAX_COMPRESSED_BYTES:
        raise BuildError(
            f"more than {MAX_UNPACKED_BYTES / 1e6:.0f} MB or {MAX_COMPRESSED_BYTES / 1e6:.0f} MB compressed"
        )
    (out / "digest").write_text(digest + "\n")
    return digest


def main() -> None:
    """Builds once, or twice with --check; replaces what is in the folder."""
    parser = argparse.ArgumentParser(description="Build the OCI image.")
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "build/image")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/image-cache", help="downloaded packages")
    parser.add_argument("--check", action="store_true", help="build a second time and compare the digests")
    arguments = parser.parse_args()
    os.umask(0o022)
    out, cache = arguments.out.absolute(), arguments.cache.absolute()
    digests: list[str] = []
    try:
        for folder in [out, out.with_name(f"{out.name}-again")] if arguments.check else [out]:
            shutil.rmtree(folder, ignore_errors=True)
            ccache = None if digests else cache / "ccache"
            digests.append(build(folder, cache, ccache))
    except (debian.DebianError, locks.LockError, BuildError) as error:
        sys.exit(f"make image: {error}")
    if len(set(digests)) != 1:
        sys.exit(f"make image: the two builds differ: {' '.join(digests)}")
    if arguments.check:
        print(f"Built twice: the same digest {digests[0]}")


if __name__ == "__main__":
    main()
