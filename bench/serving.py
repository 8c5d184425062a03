"""`redoubt bench serving`: the whole service and the bare engine, with the same requests, in one run.

    python -m bench.serving MODEL --threads 2 --streams 1,16 --json

Starts the service as `redoubt serve` does (on loopback, with a private Ray that ends with it), and loads the same model
into this process. The two alternate with the same requests: `--streams` concurrent completions, each with `--prompt`
random tokens and `--generate` greedy output tokens. A separate process sends them to the service as HTTP streams.

- `tokens_per_s`: all output tokens over the time from the first request to the end of the last stream.
- `first_token_s`: from sending a single request of `--prompt` tokens to its first text.

The load is bounded: it ends with the last stream. Uses the service through HTTP only.
"""

import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import yaml  # type: ignore[import-untyped]
from tqdm import tqdm  # type: ignore[import-untyped]

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner, kv_pages_within
from app.launch.attested_front import ALLOW_SOFT
from app.messages.failures import EngineError
from app.messages.requests import GenerateRequest, SamplingParams
from app.settings.worker import EngineSettings
from bench.common import ROOT, OneLineParser, machine, number_list, print_result
from bench.kv_memory import kv_memory_bytes
from bench.processes import free_port
from bench.serving_client import Order, Receipt
from kernels import _native

START_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that every side answers: with `streams` at a time, each of `prompt` tokens for `generate` tokens."""

    streams: tuple[int, ...]
    prompt: int = 32
    generate: int
    repeats: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingBenchOptions(Load):
    model: Path
    threads: int
    streams: tuple[int, ...] = (1, 16)
    generate: int = 128


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service on free ports of loopback."""

    pid: int
    port: int
    tls_port: int | None
    """The front's port, if there is a front."""
    log: Path
    started_s: float
    """Seconds until it was ready."""


@contextmanager
def running_service(
    options: ServingBenchOptions, evidence: str = "none", worker_settings: Mapping[str, object] | None = None
) -> Iterator[RunningService]:
    """The service with these options. Raises RuntimeError with its last output if it does not start.

    evidence: of the front that it gets, unless "none". worker_settings: settings of `worker` beside the options'.
    """
    with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder:
        config, log = Path(folder) / "service.yaml", Path(folder) / "log"
        values = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text(encoding="utf-8"))
        worker = values["applications"][0]["args"]["worker"]
        worker |= {"threads": options.threads, "max_concurrent_requests": max(options.streams)}
        worker |= worker_settings or {}
        # Random tokens and their continuations repeat themselves, so that guesses would dominate the result.
        values["applications"][0]["args"]["engine"] |= {"guess_tokens": 0, "kv_memory_bytes": kv_bytes(options)}
        tls_port = None if evidence == "none" else free_port()
        values["applications"][0]["args"]["attestation"] = {"evidence": evidence, "tls_port": tls_port or 8443}
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        port = free_port()
        command = ["setpriv", "--pdeathsig", "TERM"]  # then it ends whole, also when this bench is killed
        command += [sys.executable, "-m", "app.cli", "serve", "--config", str(config)]
        command += ["--port", str(port), "--model", str(options.model)]
        environment = os.environ | ({ALLOW_SOFT: "1"} if evidence == "soft" else {})
        began_s = time.monotonic()
        with (
            log.open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=environment) as process,
        ):
            try:
                _wait_until_ready(process, port, log)
                yield RunningService(process.pid, port, tls_port, log, time.monotonic() - began_s)
            finally:
                process.terminate()
                process.wait(60)


def kv_bytes(options: ServingBenchOptions) -> int:
    """Memory for the keys and values of all streams at once, and never less than the service's default."""
    return kv_memory_bytes(options.model, max(options.streams), options.prompt + options.generate)


class HttpSide:
    """The service as its clients use it."""

    def __init__(self, host: str, port: int, model: str, prefix: Sequence[str] = (), *, tls: bool = False) -> None:
        """prefix: the beginning of the clients' command line, as `ip netns exec NAME`. tls: without certificates."""
        self._address = {"host": host, "port": port, "model": model, "tls": tls}
        self._prefix = prefix

    def run(self, orders: Sequence[Order]) -> list[Receipt]:
        """Sends the orders from a separate process. Raises RuntimeError if one fails."""
        job = self._address | {"orders": [asdict(order) for order in orders]}
        done = subprocess.run(
            [*self._prefix, sys.executable, "-m", "bench.serving_client"],
            input=json.dumps(job), capture_output=True, text=True, cwd=ROOT, timeout=RUN_TIMEOUT_S, check=True,
        )  # fmt: skip
        receipts = [Receipt(**receipt) for receipt in json.loads(done.stdout)]
        for order, receipt in zip(orders, receipts, strict=True):
            if receipt.error or receipt.tokens != order.max_tokens:
                raise RuntimeError(f"{receipt.tokens} tokens of {order.max_tokens}: {receipt.error}")
        return receipts


class EngineSide:
    """The bare engine in this process, with the service's settings."""

    def __init__(self, options: ServingBenchOptions) -> None:
        settings = EngineSettings()
        types = settings.compute_type, settings.prompt_compute_type
        kv_type = _native.Model.chosen_kv_type(str(options.model), settings.kv_type, *types)
        context_tokens = options.prompt + options.generate
        self._runner = NativeRunner(
            str(options.model),
            threads=options.threads,
            compute_type=settings.compute_type,
            prompt_compute_type=settings.prompt_compute_type,
            kv_type=kv_type,
            kv_pages=kv_pages_within(
                str(options.model), kv_type, kv_bytes(options), grouped_context_tokens=context_tokens
            ),
            max_sequences=max(options.streams),
            max_step_tokens=512,
            max_context_tokens=context_tokens,
            page_groups=True,
        )
        self._engine = Engine(self._runner)
        self._engine.start()
        self.vocab_size = self._runner.vocab_size

    def run(self, orders: Sequence[Order]) -> list[Receipt]:
        """Submits the orders at once and waits for all. Raises EngineError."""
        first = [0.0] * len(orders)
        end = [0.0] * len(orders)
        errors: list[EngineError] = []
        done = threading.Event()

        def deliver(events: Sequence[tuple[object, Event]]) -> None:
            now_s = time.perf_counter() - start_s
            for key, event in events:
                assert isinstance(key, int)
                if isinstance(event, EngineError):
                    errors.append(event)
                    continue
                first[key] = first[key] or now_s
                if event.finish_reason is not None:
                    end[key] = now_s
            if errors or all(end):
                done.set()

        start_s = time.perf_counter()
        for i, order in enumerate(orders):
            sampling = SamplingParams(temperature=0.0, seed=0)
            self._engine.submit(
                GenerateRequest(f"{i}", order.prompt, order.max_tokens, sampling, tenant=b""), deliver, i
            )
        if not done.wait(RUN_TIMEOUT_S):
            raise TimeoutError(f"not done within {RUN_TIMEOUT_S} s")
        if errors:
            raise errors[0]
        return [Receipt(0.0, first[i], end[i], 0, order.max_tokens) for i, order in enumerate(orders)]

    def close(self) -> None:
        self._engine.stop()


def measure_serving(options: ServingBenchOptions) -> dict[str, object]:
    """Runs the bench; the result is ready for JSON. Raises RuntimeError, and what loading raises."""
    engine = EngineSide(options)
    try:
        with running_service(options) as service:
            side = HttpSide("127.0.0.1", service.port, options.model.name)
            rounds = Rounds({"engine": engine, "service": side}, options, vocab_size=engine.vocab_size)
            rounds.run()
    finally:
        engine.close()
    first_s = rounds.first_token_s()
    return {
        "model": options.model.name,
        "tokens_per_s": rounds.tokens_per_s(),
        "service_over_engine": rounds.ratios("service", "engine"),
        "first_token_s": first_s,
        "first_token_added_s": round(first_s["service"] - first_s["engine"], 4),
        **{name: value for name, value in asdict(options).items() if name not in ("model", "streams")},
        **machine(),
    }


class Side(Protocol):
    """Something that answers requests."""

    def run(self, orders: Sequence[Order]) -> list[Receipt]:
        """Sends them at once and waits for all answers."""
        ...


class Rounds:
    """Applies the same load to several sides in turn. Results are medians of all rounds but the first."""

    def __init__(self, sides: Mapping[str, Side], options: Load, vocab_size: int) -> None:
        """vocab_size: prompts are random tokens below it."""
        self._sides = sides
        self._options = options
        self._vocab_size = vocab_size
        self._rng = random.Random(7)
        self._rates: dict[str, dict[int, list[float]]] = {name: {n: [] for n in options.streams} for name in sides}
        self._next_s: dict[str, dict[int, list[float]]] = {name: {n: [] for n in options.streams} for name in sides}
        self._first_s: dict[str, list[float]] = {name: [] for name in sides}
        self.decoding_s = dict.fromkeys(sides, 0.0)
        """Seconds in which a side generated, in all rounds."""

    def run(self) -> None:
        """Measures. Raises what the sides raise."""
        generate = self._options.generate
        for _ in tqdm(range(self._options.repeats + 1), file=sys.stderr, unit="round", leave=False):
            for streams in self._options.streams:
                for name, side in self._sides.items():
                    receipts = side.run(self._orders(streams, generate))
                    took_s = max(r.end_s for r in receipts) - min(r.sent_s for r in receipts)
                    self._rates[name][streams].append(streams * generate / took_s)
                    between_s = [(r.end_s - r.first_s) / (generate - 1) for r in receipts]
                    self._next_s[name][streams].append(statistics.median(between_s))
                    self.decoding_s[name] += took_s
            for name, side in self._sides.items():
                (receipt,) = side.run(self._orders(1, 2))
                self._first_s[name].append(receipt.first_s - receipt.sent_s)

    def tokens_per_s(self) -> dict[str, dict[str, float]]:
        """Output tokens over the time from the first request to the end of the last stream, by side and streams."""
        return {
            name: {str(n): round(statistics.median(taken[1:]), 1) for n, taken in by_streams.items()}
            for name, by_streams in self._rates.items()
        }

    def ratios(self, side: str, other: str) -> dict[str, float]:
        """The one's tokens per second over the other's of the same round, by streams."""
        ours, theirs = self._rates[side], self._rates[other]
        return {
            str(n): round(statistics.median(a / b for a, b in zip(ours[n][1:], theirs[n][1:], strict=True)), 3)
            for n in self._options.streams
        }

    def next_token_s(self) -> dict[str, dict[str, float]]:
        """Time between two tokens of a stream, by side and streams."""
        return {
            name: {str(n): round(statistics.median(taken[1:]), 5) for n, taken in by_streams.items()}
            for name, by_streams in self._next_s.items()
        }

    def first_token_s(self) -> dict[str, float]:
        """Time from sending a single request to its first text, by side."""
        return {name: round(statistics.median(taken[1:]), 4) for name, taken in self._first_s.items()}

    def _orders(self, streams: int, generate: int) -> list[Order]:
        prompts = (self._rng.choices(range(self._vocab_size), k=self._options.prompt) for _ in range(streams))
        return [Order(0.0, tuple(prompt), generate) for prompt in prompts]


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.5)
    raise RuntimeError(f"the service did not start: {log.read_text(encoding='utf-8')[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="redoubt bench serving", description="Measure the service.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--threads", type=int, required=True, help="compute threads")
    parser.add_argument("--streams", type=number_list, default=(1, 16), help="concurrent requests (default 1,16)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt (default %(default)s)")
    parser.add_argument("--generate", type=int, default=128, help="tokens of each answer (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    parsed = parser.parse_args(arguments)
    options = ServingBenchOptions(
        model=parsed.model.absolute(),
        threads=parsed.threads,
        streams=parsed.streams,
        prompt=parsed.prompt,
        generate=parsed.generate,
        repeats=parsed.repeats,
    )
    errors = (EngineError, RuntimeError, ValueError, OSError)
    return print_result(lambda: measure_serving(options), errors, indent=None if parsed.json else 2)


if __name__ == "__main__":
    raise SystemExit(main())
