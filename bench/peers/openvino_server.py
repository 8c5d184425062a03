"""OpenVINO GenAI's continuous batching behind a small HTTP server of ours, for PyPI has none of its own.

The server does as little as it can: a thread adds requests and makes steps, tokens become text by a table, and each
step's tokens of a request are one event. Reads the GGUF. Standard library only at import.
"""

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.peers.http_server import HttpPeer, Sizes, Start, announce
from bench.peers.openvino_genai import PEER as ENGINE
from bench.peers.openvino_genai import precisions

STEP_TOKENS = 2048


def start(python: Path, model: Path, port: int, sizes: Sizes) -> Start:
    precision = precisions()[0]  # the faster one
    return Start(
        command=(
            *(str(python), "-m", "bench.peers.openvino_server", str(model), "--port", str(port)),
            *("--threads", str(sizes.threads), "--slots", str(sizes.slots), "--precision", precision),
            *("--kv-gib", str(sizes.kv_gib)),
        ),
        settings=f"ContinuousBatchingPipeline behind an HTTP server of this bench; the GGUF's weights, {precision}, "
        f"{STEP_TOKENS} tokens a step, split and fused prompts, {sizes.slots} sequences, prefix cache, "
        f"{sizes.kv_gib} GiB KV",
    )


PEER = HttpPeer(
    name=ENGINE.name,
    version=ENGINE.steps[0][0].replace("==", " "),
    start=start,
    steps=ENGINE.steps,
    environment=ENGINE.environment,
    reads="gguf",
    memory_per_weight_bytes=2.5,
)


@dataclass(frozen=True, slots=True)
class Job:
    """A request on its way to the engine's thread; its new token ids come back in `tokens`, then None."""

    prompt: Any
    """A tensor of token ids, [1, tokens]."""
    max_tokens: int
    tokens: "asyncio.Queue[list[int] | None]"


class Engine(threading.Thread):
    """Adds requests and makes steps."""

    def __init__(self, model: str, threads: int, slots: int, precision: str, kv_gib: int) -> None:
        """Loads the model. kv_gib: memory for keys and values."""
        super().__init__(daemon=True)
        genai: Any = import_module("openvino_genai")  # in the peer's environment only
        self._genai, self._np = genai, import_module("numpy")
        self._tensor: Any = import_module("openvino").Tensor
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = kv_gib, slots
        scheduler.max_num_batched_tokens, scheduler.dynamic_split_fuse = STEP_TOKENS, True
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        self._pipeline: Any = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._tokenizer: Any = self._pipeline.get_tokenizer()
        self.texts = token_texts(self._tokenizer.get_vocab())
        self.loop = asyncio.get_running_loop()
        self.jobs: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()

    def run(self) -> None:
        handles: dict[int, tuple[Any, Job]] = {}
        while True:
            while not handles or not self.jobs.empty():
                number, job = self.jobs.get()
                handles[number] = self._add(number, job), job
            self._pipeline.step()
            for number, (handle, job) in list(handles.items()):
                if handle.can_read():
                    new = [token for output in handle.read().values() for token in output.generated_ids]
                    self.loop.call_soon_threadsafe(job.tokens.put_nowait, new)
                if handle.get_status() != self._genai.GenerationStatus.RUNNING and not handle.can_read():
                    del handles[number]
                    self.loop.call_soon_threadsafe(job.tokens.put_nowait, None)

    def _add(self, number: int, job: Job) -> Any:
        config = self._genai.GenerationConfig(max_new_tokens=job.max_tokens, ignore_eos=True, do_sample=False)
        return self._pipeline.add_request(number, job.prompt, config)

    def prompt(self, body: Mapping[str, Any]) -> Any:
        """A request's prompt as a tensor of token ids, [1, tokens]."""
        if "messages" not in body:
            return self._tensor(self._np.array([body["prompt"]], self._np.int64))
        text = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        return self._tokenizer.encode(text, add_special_tokens=False).input_ids


def token_texts(vocabulary: Mapping[bytes, int]) -> list[str]:
    """Each token's text by its id; bytes that are no text alone are replaced, and what has no text too."""
    texts = ["\N{REPLACEMENT CHARACTER}"] * (1 + max(vocabulary.values()))
    for token, number in vocabulary.items():
        texts[number] = token.decode(errors="replace") or texts[number]
    return texts


class Server:
    """Two routes of OpenAI's API and the list of models: greedy streams of `max_tokens` tokens."""

    def __init__(self, engine: Engine) -> None:
        """The engine must run."""
        self._engine = engine
        self._requests = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            _, path, _ = (await reader.readline()).decode().split()
            size = 0
            while (header := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = header.decode().partition(":")
                size = int(value) if name.lower() == "content-length" else size
            body = json.loads(await reader.readexactly(size)) if size else {}
            if path == "/v1/models":
                await self._send(writer, 200, json.dumps({"object": "list", "data": [{"id": "model"}]}).encode())
            elif path in ("/v1/completions", "/v1/chat/completions"):
                await self._stream(writer, body, "messages" in body)
            else:
                await self._send(writer, 404, b"{}")
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, body: Mapping[str, Any], is_chat: bool) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        tokens: asyncio.Queue[list[int] | None] = asyncio.Queue()
        self._requests += 1
        prompt = self._engine.prompt(body)
        self._engine.jobs.put((self._requests, Job(prompt, body["max_tokens"], tokens)))
        made = 0
        while (new := await tokens.get()) is not None:
            made += len(new)
            text = "".join(self._engine.texts[token] for token in new)
            choice = {"index": 0, **({"delta": {"content": text}} if is_chat else {"text": text})}
            writer.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = {"prompt_tokens": prompt.get_size(), "completion_tokens": made}
        writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        await writer.drain()


async def serve(options: argparse.Namespace) -> None:
    engine = Engine(options.model, options.threads, options.slots, options.precision, options.kv_gib)
    engine.start()
    server = await asyncio.start_server(Server(engine).answer, "127.0.0.1", options.port)
    announce(precision=options.precision)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--precision", default="f32")
    for name in ("port", "threads", "slots", "kv-gib"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
