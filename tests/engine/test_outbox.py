"""Events are delivered beside the next step: what that changes, and what not."""

import threading
from collections.abc import Sequence

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.model_runner import Batch
from tests.engine.test_engine import TIMEOUT_S, Gate, Receiver, delivered, make_request
from tests.fakes import FakeRunner


def test_the_next_step_begins_before_a_receiver_has_returned() -> None:
    runner, receiver = FakeRunner(), Receiver()
    begun: list[int] = []
    changed = threading.Condition()

    def begin(batch: Batch) -> None:
        with changed:
            begun.append(runner.steps)
            changed.notify_all()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        receiver.deliver(events)
        if receiver.calls < 10:
            with changed:
                assert changed.wait_for(lambda: len(begun) > receiver.calls, TIMEOUT_S)

    runner.before_step = begin
    engine = Engine(runner)
    engine.submit(make_request("a", 5, 10), deliver, "a")
    engine.start()
    assert receiver.tokens("a") == runner.expected_tokens(make_request("a", 5, 10))
    assert receiver.calls == 10
    engine.stop()


def test_the_engine_is_never_two_steps_ahead_of_a_receiver() -> None:
    runner, receiver = FakeRunner(), Receiver()
    engine = Engine(runner)
    outbox = engine._outbox
    waits = threading.Semaphore(0)
    returned: list[int] = []
    take = outbox._delivered.get

    class Delivered:
        """Tells when the engine wants to be told of the step before."""

        def get(self) -> None:
            waits.release()
            take()

        put = outbox._delivered.put

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        receiver.deliver(events)
        if receiver.calls < 10:
            assert waits.acquire(timeout=TIMEOUT_S)  # it has computed the next step and gets no further
        returned.append(runner.steps)

    outbox._delivered = Delivered()  # type: ignore[assignment]
    engine.submit(make_request("a", 5, 10), deliver, "a")
    engine.start()
    assert waits.acquire(timeout=TIMEOUT_S)  # for the first step, before which there is none
    receiver.tokens("a")
    engine.stop()
    assert returned == [2, 3, 4, 5, 6, 7, 8, 9, 10, 10]


def test_nothing_is_delivered_after_an_abort() -> None:
    gate, receiver = Gate(), Receiver()
    runner = FakeRunner(before_step=gate)
    engine = Engine(runner)
    aborted = threading.Event()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        receiver.deliver(events)
        assert aborted.wait(TIMEOUT_S)

    for name in ("leaves", "stays"):
        engine.submit(make_request(name, 5, 10), deliver, name)
    engine.start()
    gate.wait()
    gate.let_run(1)
    gate.open()  # computes the second step while the first one is being delivered
    receiver.wait_until(lambda: len(receiver.events["leaves"]) == 1)
    while runner.steps < 2:
        pass
    engine.abort("leaves")
    aborted.set()
    assert receiver.tokens("stays") == runner.expected_tokens(make_request("stays", 5, 10))
    engine.stop()
    assert len(receiver.events["leaves"]) == 1


def test_a_receiver_that_fails_gets_nothing_more_even_of_steps_on_their_way() -> None:
    runner, receiver = FakeRunner(), Receiver()
    engine = Engine(runner)
    calls: list[int] = []

    def fail(events: Sequence[tuple[object, Event]]) -> None:
        calls.append(len(events))
        while runner.steps < 2:
            pass
        raise RuntimeError("gone")

    engine.submit(make_request("a", 5, 50), fail, "a")
    receiver.submit(engine, make_request("b", 5, 10))
    engine.start()
    assert receiver.tokens("b") == runner.expected_tokens(make_request("b", 5, 10))
    engine.stop()
    assert calls == [1]


def test_an_idle_engine_has_sent_everything_and_a_stopped_one_has_delivered_it() -> None:
    runner, receiver = FakeRunner(), Receiver()
    engine = Engine(runner)
    engine.start()
    for number in range(20):
        receiver.submit(engine, make_request(f"{number}", 5, 1))
        assert len(receiver.tokens(f"{number}")) == 1
    delivered(engine)
    slow = threading.Event()

    def deliver(events: Sequence[tuple[object, Event]]) -> None:
        slow.wait(TIMEOUT_S)
        receiver.deliver(events)

    for name in ("last", "running"):
        engine.submit(make_request(name, 5, 1 if name == "last" else 90), deliver, name)
    while engine.statistics().steps < 22:
        pass
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    while engine._inbox.closed_by is None:
        pass
    slow.set()
    stopping.join()
    assert receiver.ended("last")
    assert receiver.ended("running")
    assert not [thread for thread in threading.enumerate() if thread.name == "redoubt-delivery"]
