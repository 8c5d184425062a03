"""`redoubt bench overload`: what a bystander waits for while somebody else sends far too much.

    python -m bench.faults.overload --prompts 50 --tokens 8000 --out overload.json
    python -m bench.faults.overload --url http://127.0.0.1:8000

Without `--url` it starts the service of ray_configs/local.yaml. First a bystander asks short questions of an
idle service, one a second. Then a flood of long prompts, all different, is sent at once, and the bystander goes on
asking while it is computed. Everybody is the same caller, which is the worst case: shares between callers do not help.
The flood's own requests are counted by status, and how long the told Retry-After is.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from bench.common import ROOT, at_least, machine, print_result
from bench.faults.service import Service, service_of

_IDLE_QUESTIONS = 10
_PAUSE_S = 1.0
_ANSWER_TOKENS = 16
_TIMEOUT_S = 1800.0


async def measure_overload(url: str, prompts: int, tokens: int, longest_s: float) -> dict[str, object]:
    """Sends the flood and asks beside it; ends what is left of it after `longest_s`. Raises httpx.HTTPError."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=httpx.Limits(max_connections=None)) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        idle = [await _first_token_s(client, model) for _ in range(_IDLE_QUESTIONS)]
        flood = [asyncio.create_task(_document(client, model, tokens, seed)) for seed in range(prompts)]
        began_s = time.monotonic()
        await asyncio.sleep(_PAUSE_S)
        beside = []
        while not all(task.done() for task in flood) and time.monotonic() - began_s < longest_s:
            beside.append(await _first_token_s(client, model))
            await asyncio.sleep(_PAUSE_S)
        flood_s = time.monotonic() - began_s
        is_whole = all(task.done() for task in flood)
        for task in flood:
            task.cancel()
        outcomes = [one for one in await asyncio.gather(*flood, return_exceptions=True) if isinstance(one, tuple)]
        told = [seconds for _, seconds in outcomes if seconds is not None]
    return {
        "prompts": prompts,
        "prompt_tokens": tokens,
        "flood": dict(Counter(status for status, _ in outcomes)),
        "flood_s": round(flood_s, 1),
        "flood_ended": is_whole,
        "retry_after_s": [min(told), max(told)] if told else None,
        "idle_first_token_s": _summary(idle),
        "first_token_s": _summary(beside),
    }


async def _first_token_s(client: httpx.AsyncClient, model: str) -> float:
    """How long until the first token of a short question; the answer is read to its end."""
    question = f"Question {random.randrange(1 << 30)}: what is the capital of France?"
    body = {"model": model, "prompt": question, "max_tokens": _ANSWER_TOKENS, "stream": True, "ignore_eos": True}
    began_s, first_s = time.monotonic(), None
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            assert not line.startswith('data: {"error"'), line
            if first_s is None and line.startswith("data: "):
                first_s = time.monotonic() - began_s
    assert first_s is not None
    return first_s


async def _document(client: httpx.AsyncClient, model: str, tokens: int, seed: int) -> tuple[str, int | None]:
    """Sends a long prompt of token ids; returns its status, and the Retry-After of a refusal in seconds."""
    draw = random.Random(seed)
    ids = [draw.randrange(1000, 20000) for _ in range(tokens)]
    body = {"model": model, "prompt": ids, "max_tokens": _ANSWER_TOKENS, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body)
    after = answer.headers.get("retry-after")
    return str(answer.status_code), None if after is None else int(after)


def _summary(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {
        "questions": len(ordered),
        "median": round(statistics.median(ordered), 3),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
        "max": round(ordered[-1], 3),
    }


@contextlib.contextmanager
def _own_service() -> Iterator[Service]:
    config = ROOT / "ray_configs/local.yaml"
    with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder, service_of(config, Path(folder)) as service:
        service.wait_until_whole(1)
        yield service


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="redoubt bench overload", description="A bystander's first token behind a flood of long prompts."
    )
    parser.add_argument("--url", help="a service that runs; by default one of its own")
    parser.add_argument("--prompts", type=at_least(1), default=50)
    parser.add_argument("--tokens", type=at_least(1), default=8000, help="of each prompt")
    parser.add_argument("--longest-s", type=at_least(1), default=300, help="after that the flood is given up")
    parser.add_argument("--out", type=Path, help="a file for the result as JSON")
    options = parser.parse_args(arguments)

    def measure() -> dict[str, object]:
        with contextlib.ExitStack() as stack:
            url = options.url or stack.enter_context(_own_service()).url
            measured = asyncio.run(measure_overload(url, options.prompts, options.tokens, options.longest_s))
        return {**machine(), **measured}

    return print_result(measure, (RuntimeError, OSError, httpx.HTTPError), indent=None, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
