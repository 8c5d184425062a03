"""Texts a second through `/v1/embeddings`, beside llama.cpp's server, and what a chat waits beside an embedding job.

Both servers have the same weights in 8 bits: ours as it converts them, llama.cpp's as Q8_0. They get the same texts, in
turns; the bodies are made before, and the answers are read and not parsed. Then one chat streams answers from our
service, beside a job that embeds all the time and beside none, in turns.
Run: `redoubt bench embeddings --source DIR`; DIR: all-MiniLM-L6-v2's folder as it was published.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from tokenizers import Tokenizer

from bench.bert_gguf import sample_texts, write_bert_gguf
from bench.common import ROOT, OneLineParser, at_least, exit_on_end_signals, machine, print_result
from bench.conversations.server import Launch, Server, ServerError, undisturbed
from bench.peers import InstallError
from bench.peers.http_server import Sizes
from bench.peers.llama_embeddings import PEER
from bench.processes import free_port
from quant.conversion.embedded_model import ENCODER, NAME

TEXTS_OF_A_REQUEST: Final = 64
CLIENTS: Final = 2
WORDS: Final = {"sentences": 12, "passages": 150}
CHAT_TOKENS: Final = 128
CONTEXT_TOKENS: Final = 256
OURS: Final = "redoubt"


def texts_of(words: int, count: int, tokenizer: Tokenizer) -> list[str]:
    """So many texts of so many words, none longer than the context: llama.cpp's server refuses one that is."""
    every = " ".join(sample_texts()).split()
    texts = [" ".join(every[at % len(every) :][:words]) for at in range(0, count * words, words)]
    ends = [encoding.offsets[: CONTEXT_TOKENS - 2][-1][1] for encoding in tokenizer.encode_batch(texts, False)]
    return [text[:end] for text, end in zip(texts, ends, strict=True)]


def tokenizer_of(folder: Path) -> Tokenizer:
    """The encoder's, which cuts nothing."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class Client:
    """One connection that posts JSON."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)

    def post(self, path: str, body: bytes) -> bytes:
        """Returns the answer's body. Raises ServerError unless it is one."""
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise ServerError(f"answered {answer.status}: {content[:300]!r}")
        return content

    def stream_s(self, path: str, body: bytes) -> list[float]:
        """When each event with text came, in seconds of `time.perf_counter`."""
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        times = []
        while line := answer.readline():
            if line.startswith(b"data: {") and b'"text":"' in line and b'"text":""' not in line:
                times.append(time.perf_counter())
        return times

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


def bodies(model: str, texts: Sequence[str], encoding: str) -> list[bytes]:
    """The requests of all texts."""
    runs = [texts[at : at + TEXTS_OF_A_REQUEST] for at in range(0, len(texts), TEXTS_OF_A_REQUEST)]
    return [json.dumps({"model": model, "input": run, "encoding_format": encoding}).encode() for run in runs]


def seconds(url: str, requests: Sequence[bytes], clients: int) -> float:
    """How long it takes to answer all of them, with so many connections."""
    waiting, errors = iter(list(requests)), list[BaseException]()
    lock = threading.Lock()

    def ask() -> None:
        client = Client(url)
        try:
            while True:
                with lock:
                    body = next(waiting, None)
                if body is None:
                    return
                client.post("/v1/embeddings", body)
        except (OSError, http.client.HTTPException, ServerError) as error:
            errors.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ServerError(str(errors[0]))
    return time.perf_counter() - began_s


def vectors(url: str, model: str, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The texts' vectors, of length 1."""
    client = Client(url)
    found = []
    for body in bodies(model, texts, "float"):
        data = json.loads(client.post("/v1/embeddings", body))["data"]
        found += [entry["embedding"] for entry in sorted(data, key=lambda entry: entry["index"])]
    client.close()
    result = np.array(found, np.float32)
    unit: np.ndarray[Any, np.dtype[np.float32]] = result / np.linalg.norm(result, axis=1, keepdims=True)
    return unit


def throughput(
    servers: Sequence[Server], models: dict[str, str], rounds: int, texts: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Texts a second of each server, in turns, for each length of texts."""
    loads = {}
    for name, words in WORDS.items():
        count = max(TEXTS_OF_A_REQUEST, texts // (4 if words > 50 else 1))
        requests = {one.name: bodies(models[one.name], texts_of(words, count, tokenizer), "base64") for one in servers}
        rates: dict[str, list[float]] = {one.name: [] for one in servers}
        for number in range(rounds + 1):
            for one in servers if number % 2 else reversed(servers):
                with one.turn():
                    taken_s = seconds(one.url, requests[one.name], CLIENTS)
                if number:  # the first round warms up
                    rates[one.name].append(count / taken_s)
        loads[name] = {
            "words": words,
            "texts": count,
            "texts_per_s": {each: round(statistics.median(values), 1) for each, values in rates.items()},
            "rounds": {each: [round(value, 1) for value in values] for each, values in rates.items()},
        }
    return loads


def beside(url: str, encoder: str, chat: str, rounds: int, answers: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Times between a chat's tokens, beside an embedding job and beside none."""
    requests = bodies(encoder, texts_of(WORDS["passages"], 512, tokenizer), "base64")
    gaps: dict[str, list[float]] = {"alone": [], "beside_job": []}
    embedded, lasted_s = 0, 0.0
    for number in range(rounds):
        for kind in gaps if number % 2 else reversed(gaps):
            is_over = threading.Event()
            done = [0]

            def job(is_over: threading.Event = is_over, done: list[int] = done) -> None:
                client = Client(url)
                while not is_over.is_set():
                    client.post("/v1/embeddings", requests[done[0] % len(requests)])
                    done[0] += 1
                client.close()

            thread = threading.Thread(target=job)
            if kind == "beside_job":
                thread.start()
                time.sleep(0.5)
            began_s = time.perf_counter()
            client = Client(url)
            for answer in range(answers):
                body = {
                    "model": chat, "prompt": f"Tell a long story, number {number} {answer}, about a lighthouse.",
                    "max_tokens": CHAT_TOKENS, "stream": True, "temperature": 0, "ignore_eos": True,
                }  # fmt: skip
                times = client.stream_s("/v1/completions", json.dumps(body).encode())
                gaps[kind] += list(np.diff(times))
            client.close()
            if kind == "beside_job":
                lasted_s += time.perf_counter() - began_s
                is_over.set()
                thread.join()
                embedded += done[0] * TEXTS_OF_A_REQUEST
    percentiles = {
        kind: {f"p{percent}_ms": round(1e3 * float(np.percentile(values, percent)), 2) for percent in (50, 90, 99)}
        for kind, values in gaps.items()
    }
    alone, busy = percentiles["alone"], percentiles["beside_job"]
    return {
        "tokens": {kind: len(values) for kind, values in gaps.items()},
        "between_tokens": percentiles,
        "ratios": {key[:-3]: round(busy[key] / alone[key], 3) for key in alone},
        "texts_per_s_meanwhile": round(embedded / lasted_s, 1),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The whole result. Raises ServerError, InstallError, OSError."""
    environments: Path = options.environments
    environments.mkdir(parents=True, exist_ok=True)
    servers = [Server(_own(options, environments))]
    models = {OURS: options.encoder.name, PEER.name: "minilm"}
    tokenizer = tokenizer_of(options.encoder)
    if not options.alone:
        PEER.install(environments)
        gguf_path = environments / f"{options.source.name}-q8_0.gguf"
        write_bert_gguf(options.source, gguf_path)
        servers.append(Server(_peer(options, environments, gguf_path)))
    result: dict[str, Any] = {**machine(), "threads": options.threads, "model": options.encoder.name}
    try:
        for one in servers:
            one.start()
            one.rest()
        result["servers"] = {one.name: one.about() for one in servers}
        if len(servers) > 1:
            found = []
            for one in servers:
                with one.turn():
                    found.append(vectors(one.url, models[one.name], texts_of(WORDS["sentences"], 256, tokenizer)))
            result["cosines_of_both"] = {"least": round(float((found[0] * found[1]).sum(axis=1).min()), 5)}
        result["throughput"] = throughput(servers, models, options.rounds, options.texts, tokenizer)
        result["chat_beside_job"] = beside(
            servers[0].url, options.encoder.name, options.chat.name, options.rounds, options.answers, tokenizer
        )
    finally:
        with undisturbed():
            for one in servers:
                one.end()
    return result


def _own(options: argparse.Namespace, logs: Path) -> Launch:
    port = free_port()
    return Launch(
        name=OURS,
        version="this commit",
        settings="redoubt serve, a chat model and the encoder in int8",
        command=(
            *("setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "app.cli", "serve", "--port", str(port)),
            *("--model", str(options.chat.absolute()), "--model", str(options.encoder.absolute())),
        ),
        folder=ROOT,
        log=logs / "embeddings-redoubt.log",
        port=port,
        environment=dict(os.environ),
        workers=2,
        models=2,
        may_be_stopped=False,
        needed_bytes=2 << 30,
    )


def _peer(options: argparse.Namespace, environments: Path, model: Path) -> Launch:
    port = free_port()
    sizes = Sizes(threads=options.threads, slots=options.slots, context_tokens=CONTEXT_TOKENS, kv_bytes=0)
    start = PEER.start(PEER.python(environments).absolute(), model.absolute(), port, sizes)
    return Launch(
        name=PEER.name,
        version=PEER.version,
        settings=f"{options.threads} threads, {start.settings}",
        command=("setpriv", "--pdeathsig", "KILL", *start.command),
        folder=ROOT,
        log=environments / "embeddings-llama.log",
        port=port,
        environment={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        may_be_stopped=True,
        needed_bytes=1 << 30,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = OneLineParser(
        prog="redoubt bench embeddings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="the encoder's folder as it was published")
    parser.add_argument("--encoder", type=Path, default=ROOT / "models" / ENCODER)
    parser.add_argument("--chat", type=Path, default=ROOT / "models" / NAME)
    parser.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--slots", type=at_least(1), default=16, help="of llama.cpp's server")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--texts", type=at_least(1), default=2048, help="of a round; a quarter of passages")
    parser.add_argument("--answers", type=at_least(1), default=4, help="of a round, of the chat")
    parser.add_argument("--environments", type=Path, default=ROOT / "build/peers")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    options = parser.parse_args(arguments)
    if options.source is None and not options.alone:
        parser.error("--source is missing: the encoder's folder as it was published, for llama.cpp; or --alone")
    exit_on_end_signals()
    errors = (ServerError, InstallError, OSError)
    return print_result(lambda: measure(options), errors, indent=1, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
