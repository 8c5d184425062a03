"""The base of call readers that hold text back until a piece of it is complete. It knows no dialect."""

from abc import ABC, abstractmethod


class SteppedCall(ABC):
    """Reads one call after its name, piece by piece (`CallReader`)."""

    is_call = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self._held = ""
        self._passed: list[str] = []

    def feed(self, text: str) -> int:
        self._held += text
        while not self.done and self._step():
            pass
        if not self.done:
            return len(text)
        left, self._held = len(self._held), ""
        return len(text) - left

    def pop_arguments(self) -> str:
        arguments = "".join(self._passed)
        self._passed.clear()
        return arguments

    @abstractmethod
    def _step(self) -> bool:
        """Reads one held piece, or the call's end; returns False if more text is needed."""
