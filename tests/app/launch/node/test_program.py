"""`redoubt node` as a process, where no head answers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.listening import listens
from tests.service.running import free_port, wait_until


def test_a_node_leaves_no_core_files_and_ends_when_it_is_told_to() -> None:
    """Nor does anything that it starts: Ray, and in it workers and ingresses."""
    port = free_port()
    options = ("--address", "127.0.0.1:1", "--cores", "shared", "--health-port", f"{port}")
    with subprocess.Popen(
        [sys.executable, "-m", "app.cli", "node", "worker", *options],
        env=os.environ | {"RAY_AUTH_TOKEN": "0" * 64},
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        try:
            wait_until(lambda: listens("127.0.0.1", port), "the probes are answered", 240)
            limits = Path(f"/proc/{node.pid}/limits").read_text()
            node.send_signal(signal.SIGTERM)
            told, _ = node.communicate(timeout=240)
        finally:
            node.kill()
    (soft, hard) = next(line for line in limits.splitlines() if line.startswith("Max core")).split()[4:6]
    assert {soft, hard} <= {"0", "1"}
    assert node.returncode == 0
    assert "Stopped." in told
