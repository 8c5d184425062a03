"""RPC between two processes of the same user over a Unix socket: pickled, numbered, answered in any order.

Knows none of the calls. If the caller is cancelled, the call is cancelled at the server too.
"""

import asyncio
import contextlib
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.messages.direct_line import is_of_this_user

_HEAD = struct.Struct("!Q")
_TIMEOUT_S = 10.0


class LineLostError(Exception):
    """The connection ended before the answer came."""


class MovedError(Exception):
    """The other end no longer answers such calls; it did nothing."""


class CallFailedError(Exception):
    """The call raised an error at the other end; the message is the error's type."""


Answer = Callable[..., Awaitable[Any]]


class LineServer:
    """Answers calls on a Unix socket. For one event loop."""

    def __init__(self, path: Path, answer: Answer) -> None:
        """answer: is called with each call's arguments."""
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Listens, replacing any earlier listener on the path."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, self._path)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Flushes pending answers and closes all connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), _TIMEOUT_S)
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls: dict[int, asyncio.Task[None]] = {}
        self._writers.add(writer)
        try:
            while is_of_this_user(writer.transport):
                number, arguments = await _read(reader)
                if arguments is None:
                    if number in calls:
                        calls[number].cancel()
                    continue
                calls[number] = task = asyncio.create_task(self._answered(writer, number, arguments))
                task.add_done_callback(partial(_forget, calls, number))
        except (OSError, EOFError):
            pass
        finally:
            for task in list(calls.values()):
                task.cancel()
            self._writers.discard(writer)
            writer.close()

    async def _answered(self, writer: asyncio.StreamWriter, number: int, arguments: tuple[Any, ...]) -> None:
        try:
            answer = True, await self._answer(*arguments)
        except MovedError as error:
            answer = False, error
        except Exception as error:
            answer = False, CallFailedError(type(error).__qualname__)
        _write(writer, (number, answer))


class Line:
    """A client connection to a LineServer. For one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._calls = 0
        self.lost = asyncio.Event()
        """Set when the connection has ended."""
        self._reading = asyncio.create_task(self._read_answers(reader))

    async def call(self, *arguments: Any) -> Any:
        """Calls the server. Raises LineLostError, MovedError, CallFailedError."""
        if self.lost.is_set():
            raise MovedError
        self._calls += 1
        number = self._calls
        self._waiting[number] = answered = asyncio.get_running_loop().create_future()
        _write(self._writer, (number, arguments))
        try:
            return await answered
        except asyncio.CancelledError:
            _write(self._writer, (number, None))
            raise
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, (is_right, answer) = await _read(reader)
                if (waiting := self._waiting.get(number)) is None or waiting.done():
                    continue
                if is_right:
                    waiting.set_result(answer)
                else:
                    waiting.set_exception(answer)
        except (OSError, EOFError):
            pass
        finally:
            self.lost.set()
            self._writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(LineLostError())


async def connect(path: Path) -> Line | None:
    """Connects to the server; returns None if nobody listens there."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return None
    if not is_of_this_user(writer.transport):
        writer.close()
        return None
    return Line(reader, writer)


def call_once(path: Path, *arguments: Any) -> Any:
    """Makes one blocking call. Raises OSError, EOFError, MovedError, CallFailedError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(path))
        connection.sendall(_framed((1, arguments)))
        with connection.makefile("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise EOFError
            _, (is_right, answer) = pickle.loads(file.read(_HEAD.unpack(head)[0]))
    if not is_right:
        raise answer
    return answer


def _forget(calls: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    del calls[number]


async def _read(reader: asyncio.StreamReader) -> Any:
    (size,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return pickle.loads(await reader.readexactly(size))


def _write(writer: asyncio.StreamWriter, message: object) -> None:
    with contextlib.suppress(OSError):
        writer.write(_framed(message))


def _framed(message: object) -> bytes:
    data = pickle.dumps(message)
    return _HEAD.pack(len(data)) + data
