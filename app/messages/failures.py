"""How a request can fail, in words fit for the user."""


class EngineError(Exception):
    """Base of what the engine refuses; the message is fit for the user."""


class InvalidRequestError(EngineError):
    """A request that says something impossible: an option out of range, a token outside the vocabulary."""


class RequestTooLongError(EngineError):
    """The prompt, or prompt and output together, can never fit the model's context or the KV pages."""


class QueueFullError(EngineError):
    """No place to wait: try again later."""


class EngineStoppedError(EngineError):
    """The engine is shutting down, or its thread has failed."""


class ConstraintError(InvalidRequestError):
    """A grammar that can't be compiled, or that became too complex as the output went on.

    `reason` may quote the grammar, which is a user's: it is not in the exception's own text, which Ray Serve logs.
    `definition`: which of the grammar's own definitions it is about, if one by itself is the cause.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.definition: str | None = None

    @property
    def told(self) -> str:
        """What the client is to read."""
        return f"{self}: {self.reason}" if self.reason else str(self)


class StepFailedError(EngineError):
    """The step that held this request failed; the engine may go on with others."""


class NoWorkerError(EngineStoppedError):
    """No worker is up that could take the request; the service is starting, or its workers are lost."""


class WorkerLostError(EngineStoppedError):
    """The worker died with the request; what it had made so far is all there is."""
