"""A container whose seccomp profile refuses the system calls that bind memory: the worker goes on and says so."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.tiny_model import write_random_model

CALLS = {"mbind": 237, "set_mempolicy": 238}  # x86-64
PROGRAM = """
import asyncio, ctypes, json, os, struct, sys
from pathlib import Path

import app.workers.worker as module
from app.settings import parse_settings
from app.workers.numa import Slot

folder, error, numa, *refused = sys.argv[1:]
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
module.session_folder = lambda name: Path(folder) / name
module.spanning_slot = lambda nodes: Slot(0, (cpu,), (0,))
values = {
    "model": {"folder": folder},
    "engine": {"weight_memory": "huge_pages" if numa == "all" else "mapped", "max_step_tokens": 16,
               "prompt_chunk_tokens": 16, "kv_memory_bytes": 1 << 24},
    "worker": {"numa": numa, "threads": 1, "max_concurrent_requests": 1, "warm_up_prompt_tokens": 8,
               "warm_up_new_tokens": 2},
}

async def facts():
    return module.Worker(parse_settings(values)).record_replica_metadata()

print(json.dumps(asyncio.run(facts())))
"""


def facts_where(folder: Path, error: int, refused: list[str], numa: str = "node") -> tuple[dict[str, Any], str]:
    """What a worker reports in a process whose calls `refused` answer `error`, and what it logs."""
    numbers = [str(CALLS[name]) for name in refused]
    command = [sys.executable, "-c", PROGRAM, str(write_random_model(folder)), str(error), numa, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise OSError(done.stderr)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts, done.stderr


@pytest.mark.parametrize(
    ("error", "refused", "numa"),
    [
        (errno.EPERM, ["mbind", "set_mempolicy"], "node"),
        (errno.ENOSYS, ["set_mempolicy"], "node"),
        (errno.EPERM, ["mbind"], "all"),
    ],
)
def test_a_worker_goes_on_without_binding(tmp_path: Path, error: int, refused: list[str], numa: str) -> None:
    facts, log = facts_where(tmp_path / "model", error, refused, numa)
    assert facts["memory_bound"] is False
    assert log.count("The worker's memory is not bound to its NUMA node") == 1


def test_a_worker_that_may_bind_says_so(tmp_path: Path) -> None:
    facts, log = facts_where(tmp_path / "model", errno.EPERM, [])
    assert facts["memory_bound"] is True
    assert "NUMA" not in log


def test_any_other_error_ends_the_worker(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="can't bind memory to NUMA node 0: Permission denied"):
        facts_where(tmp_path / "model", errno.EACCES, ["set_mempolicy"])
