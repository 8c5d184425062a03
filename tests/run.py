"""`make test`, in three runs of pytest at the same time; `make test-faults`.

    python -m tests.run [ARGUMENTS OF PYTEST]
    python -m tests.run --faults

One run has the tests of one service that they all use, one after the other, and then those that start Rays and services
of their own: on two cores, two services at a time are no sooner done, and each is late for what it waits for. One has
the pages in a browser. The third has everything else, with one pytest worker a core and at the lowest priority. The
output of the two others is shown at the end. With arguments there is one ordinary run with these. The tests marked
`faults` are in none of them: they start whole services and kill what those depend on, which takes five minutes. Knows
nothing of what is tested.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVICE = "tests/service"
OWN_SERVICES = (
    "tests/service/test_serve_commands.py",
    "tests/service/test_accounts.py",
    "tests/service/test_models.py",
    "tests/service/test_by_name.py",
    "tests/service/test_ingress_cost.py",
    "tests/service/test_policies.py",
    "tests/service/test_memory.py",
    "tests/service/test_rolling.py",
    "tests/service/test_service_lost.py",
    "tests/cloud/test_cluster.py",
    "tests/app/launch/test_lost_processes.py",
    "tests/app/test_ray_internals.py",
)
PAGES = (
    "tests/app/interface/web",
    "tests/app/playground/test_page.py",
    "tests/verify/test_proxy_page.py",
)
PYTEST = (sys.executable, "-m", "pytest")
SLOWEST = "--durations=20"
"""Shown at the end of a whole run."""
LOGS = ROOT / "build"
GROUPED = ("--dist=loadscope", "--no-loadscope-reorder")
"""tests/groups.py has the groups, and their order."""
MOST_WORKERS = 8
"""Each collects all tests and imports what they need."""
PAGES_PRIORITY = "10"
LOWEST_PRIORITY = "19"
RAY_FIRST = {"RAY_worker_niceness": "0"}
"""The services wait for nobody else: Ray runs its workers at 15, where they would share the cores with the others."""
TMPFS = Path("/dev/shm")
TMPFS_LEAST_BYTES = 4 << 30


def main(arguments: Sequence[str]) -> int:
    """pytest's exit status; of several, one that failed."""
    environment = {**os.environ, **_temporary_folders()}
    if list(arguments) == ["--faults"]:
        arguments = [SLOWEST, "-m", "faults", SERVICE, *OWN_SERVICES, *PAGES]
    if arguments:
        return subprocess.run([*PYTEST, *arguments], cwd=ROOT, env=environment, check=False).returncode
    LOGS.mkdir(exist_ok=True)
    pages = ["nice", "-n", PAGES_PRIORITY, *PYTEST, SLOWEST, *PAGES]
    beside = [
        _begun("pages", pages, environment),
        _begun("beside", _beside(), environment | _one_thread()),
    ]
    ignored = [f"--ignore={path}" for path in OWN_SERVICES]
    statuses = list[int]()
    try:  # Ctrl-C reaches all of them
        for services in ([SERVICE, *ignored], OWN_SERVICES):
            command = [*PYTEST, SLOWEST, "-m", "not faults", *services]
            statuses.append(subprocess.run(command, cwd=ROOT, env=environment | RAY_FIRST, check=False).returncode)
    finally:
        for process, log in beside:
            statuses.append(process.wait())
            sys.stdout.write(log.read_text(errors="replace"))
    return next((status for status in statuses if status), 0)


def _begun(name: str, command: Sequence[str], environment: Mapping[str, str]) -> tuple["subprocess.Popen[bytes]", Path]:
    """The run, and the file with its output."""
    path = LOGS / f"tests-{name}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    return process, path


def _beside() -> list[str]:
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    ignored = [f"--ignore={path}" for path in (SERVICE, *OWN_SERVICES, *PAGES)]
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
