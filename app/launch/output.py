"""What `redoubt serve` prints: text, or with `encoding: JSON` one JSON object a line, on standard output and error.

Ray, HAProxy and processes that they start print too. So after `print_json` both streams are pipes, and output that is
not JSON is converted. The keys are those of Ray Serve's own JSON. It knows nothing of the service.
"""

import atexit
import contextlib
import json
import logging
import os
import re
import sys
import threading
from typing import Any, Final, TextIO

_AS_JSON: Final = "REDOUBT_JSON_OUTPUT"
"""An environment variable, because started programs print messages of several lines too."""
_END: Final = b"\0\n"
_COLOR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OF_PROCESS: Final = re.compile(r"\((?:(?P<actor_name>\S+) )?pid=(?P<process>\d+)\) ")
_LEVEL: Final = r"(?P<levelname>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_TIME: Final = r"(?P<asctime>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})"
_LOG_LINES: Final = (
    # Serve's; its processes print text whatever the encoding of their files
    re.compile(rf"{_LEVEL} {_TIME} (?P<component_name>\S+) (?P<component_id>\S+) (?:.*?)-- (?P<message>.*)", re.DOTALL),
    # Ray's
    re.compile(rf"{_TIME}\t{_LEVEL} (?P<filename>[^:]+):(?P<lineno>\d+) -- (?P<message>.*)", re.DOTALL),
)


def say(text: str) -> None:
    """Prints a line for the user."""
    _print(text, sys.stdout, "INFO")


def complain(text: str) -> None:
    """Prints an error of one or several lines for the user."""
    _print(text, sys.stderr, "ERROR")


def print_json() -> None:
    """Makes this process and its children print JSON lines, to the end of this process."""
    os.environ[_AS_JSON] = "1"
    logging.basicConfig(format="%(levelname)s %(asctime)s %(name)s %(process)d -- %(message)s")
    _pipe(sys.stdout, "INFO")
    _pipe(sys.stderr, "ERROR")


def as_json(text: str, level: str) -> str:
    """Converts one line. text: JSON already, a log line, or anything. level: used if the text has none."""
    text = _COLOR.sub("", text)
    values: dict[str, Any] = {}
    if (process := _OF_PROCESS.match(text)) is not None:
        values = _values(process)
        text = text[process.end() :]
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(text)
        if isinstance(read, dict) and {"asctime", "levelname", "message"} <= read.keys():
            return json.dumps(values | read)
    for form in _LOG_LINES:
        if (found := form.fullmatch(text)) is not None:
            return json.dumps(values | _values(found))
    now = logging.Formatter().formatTime(logging.makeLogRecord({}))
    return json.dumps(values | {"asctime": now, "levelname": level, "message": text})


def _values(found: re.Match[str]) -> dict[str, Any]:
    named = {name: value for name, value in found.groupdict().items() if value is not None}
    return named | {name: int(named[name]) for name in ("lineno", "process") if name in named}


def _print(text: str, out: TextIO, level: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the output is closed, which is no reason to stop
        print(as_json(text, level) if _AS_JSON in os.environ else text, file=out, flush=True)


def _pipe(stream: TextIO, level: str) -> None:
    """Puts a pipe and a thread in front of the stream's file, until this process ends."""
    stream.flush()
    number = stream.fileno()
    target = os.dup(number)
    source, sink = os.pipe()
    os.dup2(sink, number)
    os.close(sink)
    thread = threading.Thread(target=_copy, args=(source, target, level), daemon=True)
    thread.start()

    def end() -> None:
        """Ends the thread; the pipe itself has no end while other processes hold it open."""
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
        os.write(number, b"\n" + _END)
        os.dup2(target, number)
        thread.join()

    atexit.register(end)


def _copy(source: int, target: int, level: str) -> None:
    with os.fdopen(source, "rb") as lines:
        for line in iter(lines.readline, _END):
            text = line.decode(errors="replace").rstrip()
            left = f"{as_json(text, level)}\n".encode() if text else b""
            # Where the output is closed the pipe is read anyway, so that no writer blocks.
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(target, left) :]
