"""One request to an ASGI application, whose answer a test reads while it comes, and whose client may leave."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LONGEST_WAIT_S = 60.0


def http_scope(method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """What a server tells an application of a request from this machine."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


class Exchange:
    """The request is sent at once."""

    def __init__(
        self, app: Any, path: str, body: Any = None, *, method: str = "POST", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._unread = [
            {"type": "http.request", "body": json.dumps(body).encode() if body else b"", "more_body": False}
        ]
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        given = {"host": "localhost", "content-type": "application/json", **(headers or {})}
        scope = http_scope(method, path, [(name.encode(), value.encode()) for name, value in given.items()])
        self._running = asyncio.create_task(app(scope, self._receive, self._send))

    async def until(self, has_come: Callable[["Exchange"], bool]) -> None:
        """Waits for a part of the answer. Fails if the answer ends without it, or it does not come."""
        while not has_come(self):
            assert not self._running.done(), (self.status, self.body)
            self._news.clear()
            waiting = asyncio.create_task(self._news.wait())
            done, _ = await asyncio.wait(
                {waiting, self._running}, return_when=asyncio.FIRST_COMPLETED, timeout=_LONGEST_WAIT_S
            )
            waiting.cancel()
            assert done, (self.status, self.body)

    async def ended(self) -> "Exchange":
        """Waits for the answer's end."""
        await asyncio.wait_for(self._running, _LONGEST_WAIT_S)
        return self

    def leave(self) -> None:
        """The client closes its connection."""
        self._gone.set()

    async def _receive(self) -> Any:
        if self._unread:
            return self._unread.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        self.body += message.get("body", b"")
        self._news.set()
