"""Renders a chat template in a child process (`rendering_child`), which dies if a rendering exceeds its limits.

The next rendering then starts another one. It knows no messages, and not why a text is rendered.
"""

import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_CPU_S: Final = 1.0
"""A thousand messages take some hundredths."""
_MEMORY_BYTES: Final = 1 << 30
_TEXT_BYTES: Final = 64 << 20
REMEDY: Final = "give it another one: redoubt serve --chat-template FILE, or model.chat_template in the configuration"


class TemplateRefusedError(ValueError):
    """The template's own error message, or the name of a Python error in it."""


class TemplateBoundsError(ValueError):
    """A rendering exceeded its limits."""


class Rendering:
    """One template. Renders one text at a time; thread-safe."""

    def __init__(self, source: str, *, cpu_s: float = _CPU_S) -> None:
        """Raises TemplateRefusedError if the template is invalid, TemplateBoundsError."""
        self._source = source
        self._cpu_s = cpu_s
        self._lock = threading.Lock()
        self._start()

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises TemplateRefusedError, TemplateBoundsError."""
        with self._lock:
            if self._child.poll() is not None:
                self._end()
                self._start()
            return self._answer(variables)

    def _start(self) -> None:
        bounds = (self._cpu_s, _MEMORY_BYTES, _TEXT_BYTES)
        command = [sys.executable, "-P", str(Path(__file__).with_name("rendering_child.py")), *map(str, bounds)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._end = weakref.finalize(self, _end, self._child)
        self._answer(self._source)

    def _answer(self, request: object) -> str:
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None
        assert answers is not None
        head = b""
        with suppress(BrokenPipeError):
            requests.write(pickle.dumps(request))
            requests.flush()
            head = answers.readline()
        kind, size = head.split() if head else (b"", b"-1")
        text = answers.read(max(int(size), 0))
        if len(text) != int(size):
            self._end()
            raise TemplateBoundsError(
                f"the chat template exceeds {self._cpu_s:g} s of computation, {_MEMORY_BYTES >> 30} GiB of memory or"
                f" {_TEXT_BYTES >> 20} MiB of text; {REMEDY}"
            )
        if kind == b"refusal":
            raise TemplateRefusedError(text.decode("utf-8", "surrogatepass"))
        return text.decode("utf-8", "surrogatepass")


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.communicate()
