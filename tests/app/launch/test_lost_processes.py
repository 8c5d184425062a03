"""A signal to the whole process group of a service that is just starting: it ends in order, and nothing stays.

`tests/service/test_service_lost.py` does more of this with a whole service.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.tiny_model import write_model
from tests.service.running import descendants, free_port, wait_until, wait_until_all_are_gone

CONFIG = Path(__file__).parents[3] / "ray_configs/local.yaml"

pytestmark = [pytest.mark.service, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_is_an_orderly_end(number: signal.Signals, tmp_path: Path) -> None:
    """Even while Ray starts, and without a trace of Ray's."""
    model = write_model(tmp_path / "model")
    log = tmp_path / "log"
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(CONFIG), "--port", str(free_port())]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--model", str(model)], stdout=output, stderr=subprocess.STDOUT, process_group=0
        )
    try:
        wait_until(lambda: b"Starting Ray" in log.read_bytes() or process.poll() is not None, "it starts", 300)
        wait_until(lambda: len(descendants(process.pid)) > 4, "Ray's processes", 300)
        family = descendants(process.pid)
        os.killpg(process.pid, number)
        assert process.wait(300) == 0, log.read_text()
        wait_until_all_are_gone(family)
    finally:
        process.kill()
        process.wait()
    assert "Stopping ..." in log.read_text()
    assert "Traceback" not in log.read_text()
