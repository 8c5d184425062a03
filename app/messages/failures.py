"""The errors of requests. Every message may be shown to the user."""


class EngineError(Exception):
    """Base of all request errors."""


class InvalidRequestError(EngineError):
    """The request can't be met: an option out of range, a token outside the vocabulary."""


class RequestTooLongError(EngineError):
    """The prompt, or prompt and output together, can never fit the model's context or the KV pages."""


class QueueFullError(EngineError):
    """The queue is full: the client should try again later."""

    retry_after_s: int | None = None
    """Estimated seconds until there is room."""


class PlaceWantedBackError(QueueFullError):
    """A batch's request has given its place to another request, and goes on later."""


class EngineStoppedError(EngineError):
    """The engine is shutting down, or its thread has failed."""


class ConstraintError(InvalidRequestError):
    """A grammar that can't be compiled, or that became too complex during the output.

    `reason` may quote the grammar, which is a user's, so it is not in the exception's own text, which Ray Serve logs.
    `definition`: the name of the grammar's definition that by itself is the cause, if there is one.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.definition: str | None = None

    @property
    def message_for_client(self) -> str:
        return f"{self}: {self.reason}" if self.reason else str(self)


class EngineFailedError(EngineStoppedError):
    """The engine's thread has failed, or every step did."""


class RequestGivenUpError(EngineError):
    """Several workers in a row have ended while they computed the request."""


class StepFailedError(EngineError):
    """The engine step with this request failed; the engine may continue with others."""


class NoWorkerError(EngineStoppedError):
    """No worker can take the request: the service is starting, or its workers are lost."""


class ModelReplacedError(NoWorkerError):
    """The workers run another version of the model's files than the request was planned for."""


class WorkerLostError(EngineStoppedError):
    """The worker died or became unreachable while it ran the request.

    `has_crashed`: it has left a crash mark; False if it was killed, or is on another machine.
    """

    def __init__(self, message: str, *, has_crashed: bool = False) -> None:
        super().__init__(message)
        self.has_crashed = has_crashed
