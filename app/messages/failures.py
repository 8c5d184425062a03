"""How a request can fail. Every message may be shown to the user."""


class EngineError(Exception):
    """Base of all errors of a request; the message may be shown to the user."""


class InvalidRequestError(EngineError):
    """The request asks for something impossible: an option out of range, a token outside the vocabulary."""


class RequestTooLongError(EngineError):
    """The prompt, or prompt and output together, can never fit the model's context or the KV pages."""


class QueueFullError(EngineError):
    """The queue is full: try again later."""

    retry_after_s: int | None = None
    """When there will be room, as far as one knows."""


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
        """The message for the client, with the reason."""
        return f"{self}: {self.reason}" if self.reason else str(self)


class EngineFailedError(EngineStoppedError):
    """The engine's thread has failed, or every step did."""


class RequestGivenUpError(EngineError):
    """Workers have ended, one after another, while they computed the request."""


class StepFailedError(EngineError):
    """The engine step with this request failed; the engine may continue with others."""


class NoWorkerError(EngineStoppedError):
    """No worker can take the request: the service is starting, or its workers are lost."""


class ModelReplacedError(NoWorkerError):
    """The workers run another version of the model's files than the one that the request was planned for."""


class WorkerLostError(EngineStoppedError):
    """The worker died while it ran the request, or is out of reach.

    `has_crashed`: it has left a mark of a crash; not so if it was killed, or is on another machine.
    """

    def __init__(self, message: str, *, has_crashed: bool = False) -> None:
        super().__init__(message)
        self.has_crashed = has_crashed
