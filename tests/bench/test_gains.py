"""Requests as they come with and without batching, on an engine that ends an answer whenever it is told to."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from app.engine.engine import Engine
from app.messages.failures import EngineError, StepFailedError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from bench.gains import ALONE, DEFAULT, ROWS, Ask, How, Row, Run, answered, main, of_row


class Answers:
    """In the place of an engine: answers the oldest request whenever as many run as ever will."""

    def __init__(self, at_once: int, count: int, error: EngineError | None = None) -> None:
        self.at_once, self.left, self.error = at_once, count, error
        self.running: list[tuple[int, Any]] = []
        self.most = 0
        self.running_at_submit: list[int] = []

    def submit(self, request: GenerateRequest, deliver: Any, key: int) -> None:
        self.running_at_submit.append(len(self.running))
        self.running.append((key, deliver))
        self.most = max(self.most, len(self.running))
        self.left -= 1
        while self.running and (len(self.running) == self.at_once or not self.left):
            self._end_oldest()
            if self.left:
                break

    def _end_oldest(self) -> None:
        key, deliver = self.running.pop(0)
        event = self.error or TokenDelta((1, 2, 3), finish_reason="length")
        deliver([(key, event)])


def asks(count: int) -> list[Ask]:
    return [Ask((1,), 3)] * count


def test_a_request_comes_when_one_is_done() -> None:
    engine = Answers(4, 10)
    run = answered(cast("Engine", engine), asks(10), How(at_once=4))
    assert (run.tokens, engine.most) == (30, 4)
    assert engine.running_at_submit == [0, 1, 2, 3, 3, 3, 3, 3, 3, 3]


def test_alone_is_one_after_another() -> None:
    engine = Answers(1, 5)
    answered(cast("Engine", engine), asks(5), ALONE)
    assert engine.most == 1


class Batches(Answers):
    """Ends all that run when there are as many as ever will."""

    def _end_oldest(self) -> None:
        while self.running:
            super()._end_oldest()


def test_a_whole_batch_comes_when_the_last_one_is_done() -> None:
    engine = Batches(4, 10)
    run = answered(cast("Engine", engine), asks(10), How(at_once=4, whole_batches=True))
    assert run.tokens == 30
    assert engine.running_at_submit == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_an_answer_that_fails_is_raised() -> None:
    with pytest.raises(StepFailedError):
        answered(cast("Engine", Answers(2, 4, StepFailedError("a step failed"))), asks(4), How(at_once=2))


def test_a_gain_is_of_the_same_round() -> None:
    runs = [(Run(2.0, 100), Run(4.0, 100)), (Run(1.0, 100), Run(3.0, 100)), (Run(4.0, 100), Run(4.0, 100))]
    found = of_row(Row("batching", "conversations", DEFAULT, ALONE), runs)
    assert found["gain"] == {"median": 2.0, "lowest": 1.0, "highest": 3.0}
    assert found["tokens_per_s"] == {"on": 50.0, "off": 25.0}
    assert found["rounds_s"][1] == {"on": 1.0, "off": 3.0}
    assert json.dumps(found)


def test_each_row_switches_one_thing() -> None:
    for row in ROWS:
        changed = [name for name in How.__slots__ if getattr(row.on, name) != getattr(row.off, name)]
        assert len(changed) == 1, row.name


def test_wrong_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("a,b")
    assert main([str(tmp_path), "--data", str(tmp_path / "bad"), "--threads", "1"]) == 2
    error = capsys.readouterr().err
    assert "line 1 is no JSON" in error
    assert error.count("\n") == 1
