"""A direct line: a Unix socket from a worker to an ingress on the same machine, beside Serve's streams between them.

It takes less CPU per message than Serve's gRPC, and the engine needs the CPU. A line delivers only tokens, which the
request's own stream can resend (`app.engine.stream`). So a line may be missing, as when the ingress is on another
machine, and may break at any time. The sockets are in a folder of this user's, and each side checks that the other is a
process of the same user. Knows neither Ray nor the engine.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import orjson

from app.messages.bundle import Bundle, Part
from app.messages.outputs import TokenDelta

LINES_FOLDER = "lines"
"""The folder of the sockets, in Ray's session folder, each named after its ingress. The name is short because socket
paths must be."""

_CREDENTIALS = struct.Struct("3i")  # unix(7), SO_PEERCRED: process, user, group


class Lines:
    """The ingress' end: a socket that workers connect to."""

    def __init__(self, path: Path, put: Callable[[Bundle], None]) -> None:
        """put: receives every bundle. Nothing listens before `open`."""
        self._path = path
        self._put = put
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.WriteTransport] = set()

    async def open(self) -> None:
        """Listens on the running loop. If that fails, there are no lines and streams deliver everything."""
        with contextlib.suppress(OSError):  # such as a path that is too long
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            if self._path.parent.stat().st_uid == os.getuid():
                loop = asyncio.get_running_loop()
                receiver = partial(_Receiver, self._put, self._connections)
                self._server = await loop.create_unix_server(receiver, self._path)

    def close(self) -> None:
        """Stops listening, and breaks open connections."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.abort()


class Line(asyncio.Protocol):
    """The worker's end of one connection. Used on its event loop only."""

    def __init__(self) -> None:
        self.writable = True
        """Whether the other side reads as fast as this one sends."""
        self.on_writable: Callable[[], None] = _nothing
        """Called when it does so again."""
        self.on_lost: Callable[[], None] = _nothing
        """Called when the connection has ended."""
        self._transport: asyncio.WriteTransport | None = None

    def send(self, bundle: Bundle) -> None:
        """Sends parts that have tokens only."""
        assert self._transport is not None
        parts = [(part.request_id, part.start, part.delta.token_ids) for part in bundle]
        self._transport.write(orjson.dumps(parts) + b"\n")

    def close(self) -> None:
        """Closes the connection; unread data is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        if not is_of_this_user(transport):
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.writable = False
        self.on_lost()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()


async def connect(path: Path) -> Line | None:
    """Connects to the ingress that listens at `path`; None if no process does, or another user's."""
    try:
        _, line = await asyncio.get_running_loop().create_unix_connection(Line, str(path))
    except OSError:
        return None
    return line if line.writable else None


class _Receiver(asyncio.Protocol):
    """The ingress' end of one connection."""

    def __init__(self, put: Callable[[Bundle], None], connections: set[asyncio.WriteTransport]) -> None:
        self._put = put
        self._connections = connections
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._trusted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._connections.add(self._transport)
        self._trusted = is_of_this_user(transport)
        if not self._trusted:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        if not self._trusted:
            return
        *messages, self._rest = (self._rest + data).split(b"\n")
        for message in messages:
            self._put(tuple(Part(name, start, TokenDelta(tuple(ids))) for name, start, ids in orjson.loads(message)))


def is_of_this_user(transport: asyncio.BaseTransport) -> bool:
    """Whether the other end of a Unix socket is a process of this user."""
    connection: socket.socket = transport.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user == os.getuid()


def _nothing() -> None:
    pass
