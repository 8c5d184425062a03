import signal
import threading
from collections.abc import Iterator

import pytest

from app import ray_internals
from app.launch.process_watch import VitalProcessWatch
from tests.service.running import wait_until


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The SIGTERMs that this thread got."""
    monkeypatch.setattr(ray_internals, "stop_log_threads", lambda: None)
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_a_loss_is_told_once(monkeypatch: pytest.MonkeyPatch, received: list[int]) -> None:
    monkeypatch.setattr(ray_internals, "ended_vital_processes", lambda: [("raylet", -9)])
    watch = VitalProcessWatch()
    watch.start()
    wait_until(lambda: bool(received), "the signal")
    watch.stop()
    assert received == [signal.SIGTERM]
    assert "raylet was ended by SIGKILL" in str(watch.loss())


def test_after_stop_no_signal_comes(monkeypatch: pytest.MonkeyPatch, received: list[int]) -> None:
    """While the service stops Ray's processes end; what the watch sees then must reach no process without handler."""
    looking, go_on = threading.Event(), threading.Event()

    def ended() -> list[tuple[str, int]]:
        looking.set()
        go_on.wait()
        return [("raylet", 0)]

    monkeypatch.setattr(ray_internals, "ended_vital_processes", ended)
    watch = VitalProcessWatch()
    watch.start()
    looking.wait()
    threading.Timer(0.5, go_on.set).start()
    watch.stop()
    count = len(received)
    threading.Event().wait(1)
    assert len(received) == count


def test_the_end_that_is_expected_is_no_loss(monkeypatch: pytest.MonkeyPatch, received: list[int]) -> None:
    looked = threading.Event()

    def ended() -> list[tuple[str, int]]:
        looked.set()
        return [("raylet", 0)]

    monkeypatch.setattr(ray_internals, "ended_vital_processes", ended)
    watch = VitalProcessWatch()
    watch.expect_end()
    watch.start()
    looked.wait()
    watch.stop()
    assert received == []


def test_one_that_was_never_started_can_be_stopped() -> None:
    VitalProcessWatch().stop()
