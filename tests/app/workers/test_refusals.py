import logging

import pytest

from app.messages.failures import (
    ConstraintError,
    EngineFailedError,
    ModelReplacedError,
    QueueFullError,
    RequestTooLongError,
    StepFailedError,
)
from app.workers.refusals import log_no_refusals


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def log() -> tuple[logging.Logger, Kept]:
    logger, kept = logging.Logger("of a worker"), Kept()
    logger.addHandler(kept)
    log_no_refusals(logger)
    log_no_refusals(logger)  # as a second worker of the process would
    return logger, kept


@pytest.mark.parametrize("kind", [ConstraintError, RequestTooLongError, QueueFullError, ModelReplacedError])
def test_a_refusal_leaves_no_traceback(log: tuple[logging.Logger, Kept], kind: type[Exception]) -> None:
    logger, kept = log
    try:
        raise kind("no")
    except kind:
        logger.exception("Request failed.")
    assert kept.records == []


@pytest.mark.parametrize("kind", [EngineFailedError, StepFailedError, RuntimeError])
def test_a_failure_does(log: tuple[logging.Logger, Kept], kind: type[Exception]) -> None:
    logger, kept = log
    logger.warning("a warning")
    try:
        raise kind("no")
    except kind:
        logger.exception("Request failed.")
    assert [record.getMessage() for record in kept.records] == ["a warning", "Request failed."]
    assert len(logger.filters) == 1
