"""A container whose seccomp profile refuses the system calls that bind memory: the worker goes on and says so."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from tests.kernels.tiny_model import write_random_model

CALLS = {"mbind": 237, "set_mempolicy": 238}  # x86-64
PROGRAM = """
import asyncio, ctypes, json, os, struct, sys
from pathlib import Path

import app.workers.worker as module
from app.settings.applications import parse_settings
from app.workers.numa import Slot

folder = sys.argv[1]
for number, case in enumerate(map(json.loads, sys.argv[2:])):  # each in a child, which the filter stays with
    if os.fork() == 0:
        place = Path(folder) / str(number)
        place.mkdir()
        os.dup2(os.open(place / "output", os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(os.open(place / "log", os.O_CREAT | os.O_WRONLY), 2)
        break
    os.wait()
else:
    sys.exit()
error, numa, refused = case["error"], case["numa"], case["refused"]
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
code = [(LOAD, 0, 0, 0)]  # the system call's number
for number in refused:
    code += [(JUMP_IF_EQUAL, 0, 1, int(number)), (RETURN, 0, 0, ERRNO | int(error))]
filters = b"".join(struct.pack("HBBI", *one) for one in [*code, (RETURN, 0, 0, ALLOW)])
buffer = ctypes.create_string_buffer(filters)
program = ctypes.create_string_buffer(struct.pack("HP", len(filters) // 8, ctypes.addressof(buffer)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER

cpu = min(os.sched_getaffinity(0))
module.keep_on_loopback = lambda: None
module.machines = lambda: 1
module.own_actor = lambda: "actor"
module.own_deployment = lambda: ("app", "v1")
module.session_folder = lambda name: place / name
module.spanning_slot = lambda nodes: Slot(0, (cpu,), (0,))
values = {
    "model": {"folder": f"{folder}/model"},
    "engine": {"weight_memory": "huge_pages" if numa == "all" else "mapped", "max_step_tokens": 16,
               "prompt_chunk_tokens": 16, "kv_memory_bytes": 1 << 24},
    "worker": {"numa": numa, "threads": 1, "max_concurrent_requests": 1, "warm_up_prompt_tokens": 8,
               "warm_up_new_tokens": 2},
}

async def facts():
    return module.Worker(parse_settings(values)).record_replica_metadata()

print(json.dumps(asyncio.run(facts())))
"""


@dataclass(frozen=True)
class Case:
    """System calls that answer an error."""

    error: int
    refused: tuple[str, ...]
    numa: str = "node"


WITHOUT = (
    Case(errno.EPERM, ("mbind", "set_mempolicy")),
    Case(errno.ENOSYS, ("set_mempolicy",)),
    Case(errno.EPERM, ("mbind",), "all"),
)
BOUND = Case(errno.EPERM, ())
ENDING = Case(errno.EACCES, ("set_mempolicy",))
CASES = (*WITHOUT, BOUND, ENDING)
Facts = Callable[[Case], tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def facts_where(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What a worker reports in such a process, nothing if it ends with an error, and what it logs."""
    folder = tmp_path_factory.mktemp("workers")
    write_random_model(folder / "model")
    numbered = [asdict(case) | {"refused": [CALLS[name] for name in case.refused]} for case in CASES]
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), *map(json.dumps, numbered)], timeout=240, check=True)

    def facts(case: Case) -> tuple[dict[str, Any], str]:
        place = folder / str(CASES.index(case))
        lines = (place / "output").read_text().splitlines()
        return json.loads(lines[-1]) if lines else {}, (place / "log").read_text()

    return facts


@pytest.mark.parametrize("case", WITHOUT)
def test_a_worker_goes_on_without_binding(facts_where: Facts, case: Case) -> None:
    facts, log = facts_where(case)
    assert facts["memory_bound"] is False, log
    assert log.count("The worker's memory is not bound to its NUMA node") == 1


def test_a_worker_that_may_bind_says_so(facts_where: Facts) -> None:
    facts, log = facts_where(BOUND)
    assert facts["memory_bound"] is True, log
    assert "NUMA" not in log


def test_any_other_error_ends_the_worker(facts_where: Facts) -> None:
    facts, log = facts_where(ENDING)
    assert facts == {}
    assert "can't bind memory to NUMA node 0: Permission denied" in log
