"""The image's files: mmdebstrap lays Debian's locked packages, then pip, inside, the locked Python packages and ours.

Nothing is downloaded here. Our packages are built in a root of its own, with Debian 13's compiler, so the result does
not depend on the machine that builds. Knows nothing of OCI.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kuberay.image.debian import SUITE
from kuberay.image.locks import BUILD_WHEELS, WHEELS, Deb

USER_ID = 10001
HOME = "/tmp/home"
WORKING_FOLDER = "/opt/redoubt"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}

_DPKG_OPTIONS = [f"path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "lintian", "locale", "man")]
_DPKG_OPTIONS += ["path-include=/usr/share/doc/*/copyright", "force-unsafe-io"]
_PIP = (
    "env PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 PYTHONPATH=/work/pip python3 -m pip --quiet --isolated"
    " --disable-pip-version-check --no-cache-dir"
)
_INSTALL = f"{_PIP} install --no-index --no-compile --no-deps --break-system-packages --root-user-action ignore"
_SITE = "/usr/local/lib/python3.13/dist-packages"
_COMPILE = (
    "env PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash"
    f" /usr/lib/python3.13 /usr/lib/python3 {_SITE}"
)
OURS = ("redoubt", "redoubt_verify")
"""Our distributions, as the names of their wheels begin."""
UNUSED = ["ray/jars", "ray/rllib"]
"""Ray for Java and its learning library. The dashboard's page stays: without its files the REST API does not start."""


class BuildError(RuntimeError):
    """A step failed; the message has the end of its output."""


def build_wheels(
    sources: Path, wheels: Sequence[Path], names: Sequence[str], repository: Path, epoch: int, ccache: Path, out: Path
) -> list[Path]:
    """Builds redoubt and redoubt-verify from `sources` with the packages of build.lock; their wheels lie in `out`.

    names: the Debian packages, all in `repository`; wheels: the files of build.lock; epoch: Unix seconds for all times;
    ccache: a folder of compiled files, which gains those of this build.
    """
    work = _work_folder(out / "wheel-work", wheels, BUILD_WHEELS)
    shutil.copytree(sources, work / "source")
    ccache.mkdir(parents=True, exist_ok=True)
    compiler = f"CCACHE_DIR=/work/ccache CMAKE_BUILD_PARALLEL_LEVEL={os.cpu_count()}"
    hooks = [
        f"copy-in {work} /",
        f"sync-in {ccache} /work/ccache",
        f'chroot "$1" {_INSTALL} --find-links /work/wheels --require-hashes --requirement /work/{BUILD_WHEELS.name}',
        f'{compiler} chroot "$1" {_PIP} wheel --no-build-isolation --no-deps --wheel-dir /work/out'
        " /work/source /work/source/verify",
        f"sync-out /work/ccache {ccache}",
        f"sync-out /work/out {out}",
    ]
    _mmdebstrap("/dev/null", "null", names, repository, hooks, epoch)
    shutil.rmtree(work.parent)
    return [next(out.glob(f"{name}-*.whl")) for name in OURS]


def build_root(
    ours: Sequence[Path],
    wheels: Sequence[Path],
    names: Sequence[str],
    repository: Path,
    epoch: int,
    extra: Path,
    out: Path,
) -> Path:
    """Writes root.tar, all files of the image as they come; `layer.write_layer` cleans it.

    ours: our wheels; wheels: the files of wheels.lock and pip's own; extra: a folder that is laid over the root.
    """
    work = _work_folder(out / "root-work", [*wheels, *ours], WHEELS)
    user = f"redoubt:x:{USER_ID}:{USER_ID}"
    hooks = [
        f"copy-in {work} /",
        f'chroot "$1" {_INSTALL} --find-links /work/wheels --require-hashes --requirement /work/{WHEELS.name}',
        f'chroot "$1" {_INSTALL} ' + " ".join(f"/work/wheels/{wheel.name}" for wheel in ours),
        'rm -r "$1"/work ' + " ".join(f'"$1"{_SITE}/{path}' for path in UNUSED),
        f'find "$1"{_SITE} -type d "(" -name tests -o -name test ")" -prune -exec rm -r "{{}}" +',
        f'chroot "$1" {_COMPILE}',
        f'echo "{user}::{HOME}:/bin/bash" >>"$1"/etc/passwd; echo "redoubt:x:{USER_ID}:" >>"$1"/etc/group',
        f"sync-in {extra} /",
    ]
    tar = out / "root.tar"
    _mmdebstrap(str(tar), "tar", names, repository, hooks, epoch)
    shutil.rmtree(work.parent)
    return tar


def locked_names(debs: Sequence[Deb], purpose: str) -> list[str]:
    """The packages of the image, or of the build."""
    return [deb.name for deb in debs if deb.purpose in (purpose, "both")]


def _work_folder(folder: Path, wheels: Sequence[Path], lock: Path) -> Path:
    """A folder `work` that goes into the root: the wheels and their lock."""
    work = folder / "work"
    (work / "wheels").mkdir(parents=True)
    for name in ("ccache", "out"):
        (work / name).mkdir()
    for wheel in wheels:
        if wheel.name.startswith("pip-"):
            shutil.unpack_archive(wheel, work / "pip", "zip")
        shutil.copy(wheel, work / "wheels")
    shutil.copy(lock, work)
    return work


def _mmdebstrap(
    target: str, kind: str, names: Sequence[str], repository: Path, hooks: Sequence[str], epoch: int
) -> None:
    command = ["mmdebstrap", "--variant=essential", f"--format={kind}", f"--include={','.join(names)}"]
    command += [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    command += [f"--customize-hook={hook}" for hook in hooks]
    command += [SUITE, target, f"deb [trusted=yes] copy:{repository} ./"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError("mmdebstrap failed:\n" + "\n".join(done.stderr.splitlines()[-40:]))
