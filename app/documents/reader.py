"""Reads files in processes with bounds, one for each file (`child`): nothing of a file stays in one for the next.

It imports none of the libraries that read.
"""

import asyncio
import logging
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from app.documents.document import KINDS, MOST_CHARACTERS, BusyError, Document, DocumentError, Section, clean_name

_ROOT: Final = str(Path(__file__).parents[2])
_MOST_ANSWER_BYTES: Final = 5 * MOST_CHARACTERS
_WALL_TIMES: Final = 4
"""How much longer than its seconds of computation a file may take, where others compute too."""
_PIECE_BYTES: Final = 256 << 10
_DAMAGED: Final = "can't be read: it is damaged, or takes more than {} MiB of memory"
_AT_ONCE: Final = 2
_MOST_WAITING: Final = 16
_MOST_OF_ONE: Final = 12

_log = logging.getLogger(__name__)

Load = Callable[[], Awaitable[tuple[str, bytes]]]
"""Returns a file's name and content."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one file."""

    file_bytes: int = 32 << 20
    seconds: int = 30
    """Of computation."""
    memory_bytes: int = 1 << 30


class DocumentReader:
    """Reads the files of one process' clients."""

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self.bounds: Final = bounds
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._background = asyncio.Lock()
        self._open = Counter[bytes]()
        self._has_warned = False

    async def read(self, load: Load, *, sender: bytes = b"", in_background: bool = False) -> Document:
        """Reads what `load` returns when it is this file's turn, so that those that wait are in no memory.

        sender: whose files leave places for others'. in_background: nobody waits for it; one such file at a time is
        read. Raises DocumentError, whose message is a whole sentence with the file's name; BusyError; what `load`
        raises.
        """
        async with self._background if in_background else nullcontext():
            return await self._read_in_turn(load, sender)

    async def _read_in_turn(self, load: Load, sender: bytes) -> Document:
        if self._open.total() >= _AT_ONCE + _MOST_WAITING or self._open[sender] >= _MOST_OF_ONE:
            raise BusyError
        self._open[sender] += 1
        try:
            async with self._turns:
                name, data = await load()
                return await self._read(clean_name(name), data)
        finally:
            self._open[sender] -= 1
            self._open = +self._open

    async def _read(self, name: str, data: bytes) -> Document:
        try:
            document, sealed = _document(name, await self._answer(name, data), self.bounds)
        except DocumentError as error:
            raise DocumentError(f'"{name}" {error}.') from None
        if not (sealed or self._has_warned):
            self._has_warned = True
            _log.warning(
                "this machine has neither system call filters nor Linux 6.12's Landlock: files are read without"
            )
        return document

    async def _answer(self, name: str, data: bytes) -> bytes:
        """Returns what the child says. Raises DocumentError."""
        bounds = self.bounds
        if len(data) > bounds.file_bytes:
            raise DocumentError(f"has more than {bounds.file_bytes >> 20} MiB: send a part of it")
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "app.documents.child", str(bounds.seconds), str(bounds.memory_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": _ROOT, "PYTHONUTF8": "1"},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            async with asyncio.timeout(_WALL_TIMES * bounds.seconds):
                answer, _ = await asyncio.gather(_received(child.stdout), _fed(child.stdin, name, data))
                code = await child.wait()
        except TimeoutError:
            code = -signal.SIGXCPU
        finally:  # also if the request is cancelled
            if child.returncode is None:
                child.kill()
                await child.wait()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise DocumentError(f"takes more than {bounds.seconds} s to read: send a part of it")
        if code != 0 or not answer:
            raise DocumentError(_DAMAGED.format(bounds.memory_bytes >> 20))
        return answer


async def _fed(stream: asyncio.StreamWriter, name: str, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the child has ended, and its code says why
        stream.write(name.encode() + b"\n")
        for start in range(0, len(data), _PIECE_BYTES):
            stream.write(data[start : start + _PIECE_BYTES])
            await stream.drain()
        stream.close()


async def _received(stream: asyncio.StreamReader) -> bytes:
    """Returns what came; nothing if it is too much."""
    answer = bytearray()
    while piece := await stream.read(_PIECE_BYTES):
        if len(answer) <= _MOST_ANSWER_BYTES:
            answer += piece
    return b"" if len(answer) > _MOST_ANSWER_BYTES else bytes(answer)


def _document(name: str, answer: bytes, bounds: Bounds) -> tuple[Document, bool]:
    """Returns what the child read, and whether the kernel held it.

    Nothing that it says is believed to have the right form. Raises DocumentError.
    """
    try:
        found: dict[str, Any] = orjson.loads(answer)
        if "refusal" in found:
            raise DocumentError(found["refusal"] or _DAMAGED.format(bounds.memory_bytes >> 20))
        pages = found["pages"]
        document = Document(
            sections=[
                Section(
                    str(one["text"]),
                    None if one["page"] is None else int(one["page"]),
                    " ".join(str(one["mark"]).split()),
                )
                for one in found["sections"]
            ],
            notes=[str(note) for note in found["notes"]],
            pages=None if pages is None else int(pages),
            name=name,
            kind=KINDS[KINDS.index(found["kind"])],
        )
        return document, bool(found["sealed"])
    except DocumentError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError):
        raise DocumentError(_DAMAGED.format(bounds.memory_bytes >> 20)) from None
