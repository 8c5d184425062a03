"""The section about requests at the same time: throughput and time per token of the service, with one and two workers.

Uses the service through HTTP only.
"""

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from app.workers.numa import Slot
from bench.report.pace import SERVICE_START_S
from bench.report.published import LABEL, TWO_WORKERS
from bench.report.section import NotMeasuredError, Result, Section, Setup
from bench.report.texts import milliseconds, number
from bench.report.view import Lines, Table, View
from bench.serving import HttpSide, Rounds, RunningService, ServingBenchOptions, running_service

STREAMS: Final = (1, 2, 4, 8, 16, 32)
QUICK_STREAMS: Final = (1, 4, 16)
PROMPT_TOKENS: Final = 32
VOCABULARY_TOKENS: Final = 20000
"""Prompts are made of tokens below, or of half of a smaller vocabulary."""
_WORKERS_WAIT_S = 120.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Layout:
    """How the service's workers share the machine."""

    name: str
    workers: int
    threads: int
    """Threads per worker."""
    cpus_per_worker: int | None
    """None: all cores of a NUMA node."""

    def worker_settings(self) -> dict[str, object]:
        """Settings of `worker`, besides the threads."""
        return {"count": self.workers, "cpus_per_worker": self.cpus_per_worker}


def layouts(nodes: Sequence[Slot], threads: int) -> list[Layout]:
    """One worker and two: on several nodes each has a node; on one, two workers have half of the threads each."""
    one = Layout("1 worker", 1, threads, None)
    if len(nodes) > 1:
        return [one, Layout("2 workers, one a node", 2, threads, None)]
    return [one, Layout("2 workers, half of the cores each", 2, threads // 2, threads // 2)] if threads > 1 else [one]


def _load(setup: Setup, threads: int) -> ServingBenchOptions:
    quick = setup.options.quick
    new_tokens = 32 if quick else 128
    room = setup.subject.context_tokens - PROMPT_TOKENS
    if room < new_tokens:
        raise NotMeasuredError(f"the model's context of {setup.subject.context_tokens} tokens is too short")
    return ServingBenchOptions(
        model=setup.subject.served().absolute(),
        threads=threads,
        streams=QUICK_STREAMS if quick else STREAMS,
        prompt=PROMPT_TOKENS,
        generate=new_tokens,
        repeats=setup.repeats,
    )


def measure(setup: Setup) -> Result:
    """Tokens a second and the time of a token, by streams and workers. Raises RuntimeError, QuantError, OSError."""
    rows = [
        setup.journal.get(f"concurrency/{layout.workers}", partial(_of_layout, setup, layout))
        for layout in layouts(setup.nodes, setup.options.threads)
    ]
    return {"prompt": PROMPT_TOKENS, "repeats": setup.repeats, "rows": rows}


def _of_layout(setup: Setup, layout: Layout) -> Result:
    load = _load(setup, layout.threads)
    setup.tell(layout.name)
    with running_service(load, worker_settings=layout.worker_settings()) as service:
        wait_for_workers(service, layout.workers)
        side = HttpSide("127.0.0.1", service.port, load.model.name)
        rounds = Rounds({"service": side}, load, vocab_size=VOCABULARY_TOKENS)
        rounds.run()
    return {
        "name": layout.name,
        "workers": layout.workers,
        "threads": layout.threads,
        "new_tokens": load.generate,
        "start_s": service.started_s,
        "first_token_s": rounds.first_token_s()["service"],
        "tokens_per_s": rounds.tokens_per_s()["service"],
        "next_token_s": rounds.next_token_s()["service"],
    }


def wait_for_workers(service: RunningService, workers: int) -> None:
    """Waits until `workers` workers take requests. Raises RuntimeError if that takes too long."""
    deadline_s = time.monotonic() + _WORKERS_WAIT_S
    up = 0
    while time.monotonic() < deadline_s:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
        try:
            connection.request("GET", "/health")
            up = int(json.load(connection.getresponse())["workers"])
        finally:
            connection.close()
        if up >= workers:
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"{up} of {workers} workers were up after {_WORKERS_WAIT_S:.0f} s")


def view(result: Mapping[str, Any]) -> View:
    """Two charts over the number of requests, and a table."""
    rows = result["rows"]
    rates = {row["name"]: [(int(n), rate) for n, rate in row["tokens_per_s"].items()] for row in rows}
    times = {row["name"]: [(int(n), next_s * 1e3) for n, next_s in row["next_token_s"].items()] for row in rows}
    x_label = "requests at the same time"
    charts = [
        Lines(title="Throughput", x_label=x_label, y_label="tokens/s, all requests", series=rates, log_x=True),
        Lines(title="Time per token", x_label=x_label, y_label="ms, one request", series=times, log_x=True),
    ]
    columns = [x_label]
    for row in rows:
        columns += [f"{row['name']}: tokens/s", "ms a token"]
    two = rows[-1] if len(rows) > 1 else None
    table = Table(
        caption=f"{result['prompt']} tokens of prompt, {rows[0]['new_tokens']} of output",
        columns=[*columns, *(["throughput of 2 over 1"] if two else [])],
        rows=[
            [
                n,
                *(
                    text
                    for row in rows
                    for text in (number(row["tokens_per_s"][n]), milliseconds(row["next_token_s"][n]))
                ),
                *([f"{two['tokens_per_s'][n] / rows[0]['tokens_per_s'][n]:.2f}"] if two else []),
            ]
            for n in rows[0]["tokens_per_s"]
        ],
    )
    return View(sentences=_sentences(rows), charts=charts, tables=[table])


def _sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    first = ", ".join(f"{row['name']} {milliseconds(row['first_token_s'])} ms" for row in rows)
    sentences = [f"First token of a single request through the service: {first}."]
    if len(rows) == 1:
        sentences.append("Two workers were not measured: they need two cores.")
        return sentences
    threads = [row["workers"] * row["threads"] for row in rows]
    if threads[0] == threads[1]:
        sentences.append(
            f"Both cases use {threads[0]} compute threads in all: two workers do not have more of the machine than one."
        )
    else:
        sentences.append(f"One worker has {threads[0]} compute threads, two have {threads[1]} in all.")
    sentences.append(
        f"{LABEL[0].upper()}{LABEL[1:]} (other model, hardware and engine): two workers had {TWO_WORKERS}, each"
        " with the cores of a NUMA node of its own."
    )
    return sentences


def _expected_s(setup: Setup) -> float:
    quick = setup.options.quick
    new_tokens, streams = (32, QUICK_STREAMS) if quick else (128, STREAMS)
    once = sum(setup.pace.answers_s(n, PROMPT_TOKENS, new_tokens) for n in streams)
    many = layouts(setup.nodes, setup.options.threads)
    return len(many) * (SERVICE_START_S + (setup.repeats + 1) * (once + len(streams)))


SECTION = Section(
    "concurrency",
    "Throughput and time per token over requests at the same time",
    "The whole service on loopback, as `redoubt serve` starts it: HTTP streams to a client in a process of its own,"
    " random tokens as prompts, greedy answers of one length, and no guesses (speculative decoding). Medians of the"
    " rounds after a first one.",
    measure,
    view,
    _expected_s,
)
