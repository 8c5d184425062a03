"""`make test`, in two runs of pytest at the same time; `make test-faults`.

    python -m tests.run [ARGUMENTS OF PYTEST]
    python -m tests.run --faults

One run has the services, the cluster and the browser, one test after the other: they wait for the clock much of the
time. The other has everything else, with one pytest worker a core and at a lower priority; its output is shown at the
end. With arguments there is one ordinary run with these. The tests marked `faults` are in neither: they start whole
services of their own and kill what those depend on, which takes five minutes. Knows nothing of what is tested.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALONE = (
    "tests/service",
    "tests/cloud/test_cluster.py",
    "tests/app/interface/web",
    "tests/app/playground/test_page.py",
    "tests/app/launch/test_lost_processes.py",
    "tests/app/test_ray_internals.py",
    "tests/verify/test_proxy_page.py",
)
PYTEST = (sys.executable, "-m", "pytest")
SLOWEST = "--durations=20"
"""Shown at the end of a whole run."""
LOG = ROOT / "build" / "tests-beside.log"
GROUPED = ("--dist=loadscope", "--no-loadscope-reorder")
"""tests/groups.py has the groups, and their order."""
MOST_WORKERS = 8
"""Each collects all tests and imports what they need."""
LOWEST_PRIORITY = "19"
"""Ray runs the services' workers at 15: these have to come after them."""
TMPFS = Path("/dev/shm")
TMPFS_LEAST_BYTES = 4 << 30


def main(arguments: Sequence[str]) -> int:
    """pytest's exit status; of two, one that failed."""
    environment = {**os.environ, **_temporary_folders()}
    if list(arguments) == ["--faults"]:
        arguments = [SLOWEST, "-m", "faults", *ALONE]
    if arguments:
        return subprocess.run([*PYTEST, *arguments], cwd=ROOT, env=environment, check=False).returncode
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("wb") as log:
        beside = subprocess.Popen(
            _beside(), cwd=ROOT, env=environment | _one_thread(), stdout=log, stderr=subprocess.STDOUT
        )
    alone = subprocess.Popen([*PYTEST, SLOWEST, "-m", "not faults", *ALONE], cwd=ROOT, env=environment)
    try:  # Ctrl-C reaches both of them too
        alone.wait()
    finally:
        beside.wait()
        sys.stdout.write(LOG.read_text(errors="replace"))
    return beside.returncode or alone.returncode


def _beside() -> list[str]:
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    ignored = [f"--ignore={path}" for path in ALONE]
    return ["nice", "-n", LOWEST_PRIORITY, *PYTEST, SLOWEST, f"--numprocesses={workers}", *GROUPED, *ignored]


def _one_thread() -> dict[str, str]:
    """For libraries whose threads wait for each other at full speed: the cores have work already."""
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _temporary_folders() -> dict[str, str]:
    """Where pytest puts them: into memory if it has room, as models are written and synchronized all the time."""
    if TMPFS.is_dir() and os.access(TMPFS, os.W_OK) and shutil.disk_usage(TMPFS).free >= TMPFS_LEAST_BYTES:
        return {"PYTEST_DEBUG_TEMPROOT": str(TMPFS)}
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
