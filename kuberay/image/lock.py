"""Writes the image's locks anew: `make image-lock`. Needs Python 3.13 and the registries.

Debian's newest versions; Python packages in the versions of requirements/*.lock.
"""

import argparse
import json
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from kuberay.image.debian import Archive, sha256_of
from kuberay.image.locks import BUILD_WHEELS, PACKAGES, WHEELS, Deb, Purpose, Wheel, write_packages, write_wheels
from tools.locks import LOCKS, read_lock

ROOT = Path(__file__).parents[2]
IMAGE_PACKAGES = ["python3", "bash", "ca-certificates", "haproxy", "libgomp1"]
"""bash: KubeRay's init container runs `bash -lc`. haproxy: TLS, with a current OpenSSL."""
BUILD_PACKAGES = ["ccache", "g++", "python3-dev", "python3-venv"]
BUILD_REQUIREMENTS = ["pip==26.3"]
"""What the packages are installed with, beside what our two distributions are built with."""


def lock_packages(work: Path, cache: Path) -> None:
    """Writes packages.lock."""
    archive = Archive(work / "apt")
    image, build = set(archive.closure(IMAGE_PACKAGES)), set(archive.closure(BUILD_PACKAGES))
    debs = []
    for package in sorted(image | build):
        name, version, architecture = package
        purpose: Purpose = "both" if package in image & build else "image" if package in image else "build"
        debs.append(Deb(name, version, architecture, "", purpose))
    cache.mkdir(parents=True, exist_ok=True)
    archive.download((f"{d.name}={d.version}" for d in debs if not (cache / d.file_name).exists()), cache)
    write_packages(Deb(d.name, d.version, d.architecture, sha256_of(cache / d.file_name), d.purpose) for d in debs)


def resolve(python: str, requirements: Sequence[str]) -> list[Wheel]:
    """What pip of that Python would install for these, in the versions of requirements/*.lock."""
    with (
        tempfile.NamedTemporaryFile(suffix=".json") as report,
        tempfile.NamedTemporaryFile("w", suffix=".txt") as versions,
    ):
        versions.writelines(f"{locked}\n" for path in LOCKS.glob("*.lock") for locked, _ in read_lock(path))
        versions.flush()
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--prefer-binary"]
        command += ["--only-binary", ":all:", "--constraint", versions.name, "--report", report.name]
        subprocess.run([*command, *requirements], check=True)
        installed = json.load(report)["install"]
    wheels = []
    for item in installed:
        name = item["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
        wheels.append(Wheel(name, item["metadata"]["version"], sha256))
    return wheels


def main() -> None:
    """Writes the three files."""
    parser = argparse.ArgumentParser(description="Write the image's locks anew.")
    parser.add_argument("--python", default="python3.13", help="a Python 3.13 with pip")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/image-cache")
    arguments = parser.parse_args()
    project, verifier = (
        tomllib.loads((ROOT / name).read_text()) for name in ("pyproject.toml", "verify/pyproject.toml")
    )
    extras = project["project"]["optional-dependencies"]
    build = [*BUILD_REQUIREMENTS, *extras["build"], *verifier["build-system"]["requires"]]
    serving = [*project["project"]["dependencies"], *extras["postgres"], *verifier["project"]["dependencies"]]
    write_wheels(resolve(arguments.python, serving), WHEELS)
    write_wheels(resolve(arguments.python, build), BUILD_WHEELS)
    with tempfile.TemporaryDirectory(prefix="redoubt-lock-") as work:
        lock_packages(Path(work), arguments.cache / "debs")
    print(f"Wrote {PACKAGES.name}, {WHEELS.name} and {BUILD_WHEELS.name}")


if __name__ == "__main__":
    main()
