"""Keeps refused requests out of a worker's log: Serve logs a traceback for every exception of a replica's method.

The ingress tells the client the reason, and its own log has the status. Failures of the worker stay in the log.
"""

import logging

from app.messages.failures import InvalidRequestError, ModelReplacedError, QueueFullError, RequestTooLongError

_REFUSALS = (InvalidRequestError, ModelReplacedError, QueueFullError, RequestTooLongError)


class _NoRefusals(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], _REFUSALS)


def log_no_refusals(logger: logging.Logger) -> None:
    """Suppresses tracebacks of refused requests in that logger, which is Serve's in a worker."""
    if not any(isinstance(each, _NoRefusals) for each in logger.filters):
        logger.addFilter(_NoRefusals())
