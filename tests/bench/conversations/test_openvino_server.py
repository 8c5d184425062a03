"""The HTTP server around OpenVINO's pipeline, with a pipeline of a few lines, and the bench's own client."""

import asyncio
import queue
import threading
from collections.abc import Mapping
from typing import Any, cast

from bench.conversations.client import Client
from bench.conversations.load import body
from bench.conversations.plan import TurnRequest
from bench.peers.openvino_server import Engine, Job, Server, token_texts


class Prompt:
    def __init__(self, size: int) -> None:
        self.size = size

    def get_size(self) -> int:
        return self.size


class Pipeline(threading.Thread):
    """Writes the tokens 0, 1, 2 ..., the first two at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.texts = ["zero", " one", " two", " three"]
        self.loop = asyncio.get_running_loop()
        self.jobs: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()

    def prompt(self, request: Mapping[str, Any]) -> Prompt:
        return Prompt(len(request.get("prompt") or request["messages"]))

    def run(self) -> None:
        while True:
            _, job = self.jobs.get()
            for new in ([0, 1], *([token] for token in range(2, job.max_tokens)), None):
                self.loop.call_soon_threadsafe(job.tokens.put_nowait, new)


def test_both_routes_stream_what_was_ordered() -> None:
    async def run() -> None:
        engine = Pipeline()
        engine.start()
        served = Server(cast("Engine", engine))
        async with await asyncio.start_server(served.answer, "127.0.0.1", 0) as server:
            requests = [TurnRequest((("user", "a"),), (), 1, 4), TurnRequest((), (7, 8, 9), 3, 2)]
            job = {
                "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                "conversations": [[body("model", request)] for request in requests],
                **{"arrivals_s": None, "at_once": 2, "timeout_s": 60, "end_by_s": 120},
            }
            chat, ids = await Client(job).run()
        assert (chat.error, chat.tokens, chat.prompt_tokens, len(chat.event_times_s)) == ("", 4, 1, 3)
        assert (ids.error, ids.tokens, ids.prompt_tokens, len(ids.event_times_s)) == ("", 2, 3, 1)

    asyncio.run(run())


def test_token_texts() -> None:
    vocabulary = {b"a": 0, "\u00e9".encode(): 1, b"\xc3": 2, b"": 3, b" b": 5}
    lost = "\N{REPLACEMENT CHARACTER}"
    assert token_texts(vocabulary) == ["a", "\u00e9", lost, lost, lost, " b"]
