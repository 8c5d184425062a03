"""A worker without an engine: it answers with a script, and records its requests and how their streams ended."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from app.messages.outputs import FinishReason, TokenDelta
from app.messages.requests import GenerateRequest

Script = Callable[[GenerateRequest], Sequence[TokenDelta | Exception]]


def deltas(token_ids: Sequence[int], *, each: int = 1, finish_reason: FinishReason = "stop") -> list[TokenDelta]:
    pieces = [TokenDelta(tuple(token_ids[i : i + each])) for i in range(0, len(token_ids), each)]
    return [*pieces, TokenDelta((), finish_reason)]


class FakeWorker:
    """`closed` counts the streams that were ended by their reader before their script was."""

    def __init__(self, script: Script, *, hang_after: int | None = None) -> None:
        self._script = script
        self._hang_after = hang_after
        self.requests: list[GenerateRequest] = []
        self.running = 0
        self.closed = 0
        self.started = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        self.requests.append(request)
        self.running += 1
        finished = False
        try:
            for i, item in enumerate(self._script(request)):
                if self._hang_after == i:
                    self.started.set()
                    await asyncio.Event().wait()
                if isinstance(item, Exception):
                    finished = True
                    raise item
                finished = item.finish_reason is not None
                yield item
                await asyncio.sleep(0)
        finally:
            self.running -= 1
            self.closed += not finished
