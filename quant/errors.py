"""The errors of conversion, each with a message for the user."""


class QuantError(Exception):
    """Base of every error of this package."""


class SourceError(QuantError):
    """A checkpoint is damaged, incomplete or not what it claims to be; names the file and the reason."""


class UnsupportedModelError(QuantError):
    """A valid checkpoint that this engine does not run; names the architecture, option or type."""


class TensorError(QuantError):
    """A tensor can't be converted as requested; names the tensor and the reason."""

    def __init__(self, tensor: str, reason: str) -> None:
        super().__init__(f"tensor {tensor!r}: {reason}")
        self.tensor = tensor


class OutputError(QuantError):
    """The output folder can't be written; names the folder and the reason."""


class ResourceError(QuantError):
    """This machine lacks the disk or the memory; names how much is needed, how much is free, and what to do."""
