"""The real HTTP application over a worker without an engine, which says what a script tells it.

    python -m tests.conformance.scripted --port PORT --work FOLDER

For clients that do a task in several requests, which a small model can't. FOLDER/script.json is a list of
{"when": TEXT, "say": TEXT}: a request whose prompt has the first text is answered with the second; the first entry that
fits is used. It is read for each request. What came in, and the status of its answer, go to FOLDER/requests.jsonl; the
prompts that the model got, to FOLDER/prompts.jsonl.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.service import http_app
from tests.app.tiny_model import reference_tokenizer, tiny_model

CONTEXT_TOKENS = 1 << 20
"""The tokenizer has a few hundred tokens, so an agent's instructions are many."""


class Script:
    """Answers from script.json."""

    def __init__(self, work: Path) -> None:
        self._path = work / "script.json"
        self._prompts = work / "prompts.jsonl"
        self._tokenizer = reference_tokenizer()

    def __call__(self, request: GenerateRequest) -> Sequence[TokenDelta]:
        prompt = self._tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        with self._prompts.open("a") as file:
            file.write(json.dumps(prompt) + "\n")
        entries = json.loads(self._path.read_text())
        text = next((entry["say"] for entry in entries if entry["when"] in prompt), "There is no such entry.")
        return deltas(self._tokenizer.encode(text).ids, each=4)


class Recorder:
    """Writes down each request and its status."""

    def __init__(self, app: ASGIApp, work: Path) -> None:
        self._app = app
        self._path = work / "requests.jsonl"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body: list[bytes] = []

        async def received() -> Message:
            message = await receive()
            body.append(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, b"".join(body), message["status"])
            await send(message)

        await self._app(scope, received, sent)

    def _note(self, scope: Scope, body: bytes, status: int) -> None:
        with self._path.open("a") as file:
            text = body.decode(errors="replace")
            file.write(json.dumps({"path": scope["path"], "status": status, "body": text}) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(prog="tests.conformance.scripted")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args(arguments)
    worker = FakeWorker(Script(options.work))
    app = http_app(
        worker.generate,
        model=tiny_model(context_tokens=CONTEXT_TOKENS),
        default_max_tokens=8192,
        max_body_bytes=32 << 20,
    )
    uvicorn.run(Recorder(app, options.work), host="127.0.0.1", port=options.port, log_level="error", ws="none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
