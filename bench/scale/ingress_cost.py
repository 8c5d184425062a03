"""What a request and a streamed token take of the processors of what is in front of the workers.

Starts the service as `redoubt bench serving` does, and gives it two loads of the same number of requests: few tokens
each, then many. From the processor time of each process (/proc) over both follow its seconds a request and a token, and
so how many tokens a second one core of an ingress passes on. Uses the service through HTTP only.
"""

import random
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.common import machine
from bench.faults.service import PROCESSES
from bench.processes import cpu_s, descendants
from bench.serving import HttpSide, ServingBenchOptions, running_service
from bench.serving_client import Order

_PARTS: Final = ("ingress", "haproxy", "controller", "worker")
_FEW_TOKENS: Final = 2
_VOCABULARY: Final = 1000
"""Prompts are random tokens below it, which every model has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressOptions:
    model: Path
    threads: int = 1
    streams: int = 16
    rounds: int = 4
    """Rounds of `streams` requests with few tokens, and of as many with many."""
    prompt: int = 100
    generate: int = 300


@dataclass(frozen=True, slots=True)
class _Round:
    took_s: float
    cpu_s: Mapping[str, float]
    """CPU time of each part."""


def ingress_costs(options: IngressOptions) -> dict[str, Any]:
    """Each part's processor time in microseconds. Raises RuntimeError if the service fails or a request does."""
    serving = ServingBenchOptions(
        model=options.model, threads=options.threads, streams=(options.streams,), generate=options.generate
    )
    with running_service(serving) as service:
        side = HttpSide("127.0.0.1", service.port, options.model.name)
        rng = random.Random(1)  # of all prompts: one that came before would be in the workers' prefix cache
        _round(side, options, _FEW_TOKENS, service.pid, rng)  # not counted: warms up
        few = [_round(side, options, _FEW_TOKENS, service.pid, rng) for _ in range(options.rounds)]
        many = [_round(side, options, options.generate, service.pid, rng) for _ in range(options.rounds)]
    return {
        "model": options.model.name,
        "streams": options.streams,
        "prompt_tokens": options.prompt,
        "generated_tokens": options.generate,
        "tokens_per_s": round(options.streams * options.generate / statistics.median(one.took_s for one in many), 1),
        "parts": {part: _costs(part, few, many, options) for part in _PARTS},
        **machine(),
    }


def _costs(part: str, few: list[_Round], many: list[_Round], options: IngressOptions) -> dict[str, float]:
    """Costs per token and request, from two loads with different numbers of tokens."""
    few_s, many_s = (statistics.median(one.cpu_s[part] for one in rounds) / options.streams for rounds in (few, many))
    token_s = (many_s - few_s) / (options.generate - _FEW_TOKENS)
    return {
        "token_us": round(token_s * 1e6, 1),
        "request_us": round((few_s - _FEW_TOKENS * token_s) * 1e6, 1),
        "share_of_a_core": round(statistics.median(one.cpu_s[part] / one.took_s for one in many), 3),
    }


def _round(side: HttpSide, options: IngressOptions, tokens: int, service: int, rng: random.Random) -> _Round:
    orders = [
        Order(0.0, tuple(rng.randrange(_VOCABULARY) for _ in range(options.prompt)), tokens)
        for _ in range(options.streams)
    ]
    before_s = _cpu_s(service)
    receipts = side.run(orders)
    took_s = max(one.end_s for one in receipts) - min(one.sent_s for one in receipts)
    time.sleep(0.2)  # what ends after the last token belongs to the round too
    after_s = _cpu_s(service)
    used_s = {part: sum(s - before_s[part].get(pid, 0.0) for pid, s in after_s[part].items()) for part in _PARTS}
    return _Round(took_s, used_s)


def _cpu_s(service: int) -> dict[str, dict[int, float]]:
    """Processor seconds that each process of each part has used, all threads together."""
    parts: dict[str, dict[int, float]] = {part: {} for part in _PARTS}
    for pid in descendants(service):
        with suppress(OSError):  # it has ended since
            line = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
            for part in _PARTS:
                if PROCESSES[part] in line:
                    parts[part][pid] = cpu_s(pid)
    return parts
