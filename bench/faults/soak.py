"""`redoubt bench soak`: whether a busy service grows.

    python -m bench.faults.soak --minutes 60 --out soak.json

Starts a service (two workers of the embedded model, or `--config`) with clients in a loop: streams and blocking
requests, and abuse beside them: requests that are refused, that are wrong, whose client leaves. Sixty times it reads
each process' own memory, descriptors and threads, and compares the last fifth of the readings with the second fifth: in
the first one caches fill. Every complete answer's text is compared with a clean run's.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.common import at_least, machine, print_result
from bench.faults.load import Load
from bench.faults.service import PROCESSES, Service, service_of

_READINGS = 60
_ABUSE_PAUSE_S = 0.05

Reading = tuple[int, int, int]
"""Own memory in KiB, descriptors, threads."""


async def measure_soak(config: Path | None, clients: int, minutes: float) -> dict[str, object]:
    """Runs the load and reads. Raises RuntimeError if the service does not start, or a process was replaced."""
    with tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder, service_of(config, Path(folder)) as service:
        await asyncio.to_thread(service.wait_until_whole, 2 if config is None else 1)
        model = service.rows()[0]["model_names"][0]
        load = Load(service.url, model, clients)
        await load.learn()
        load.start()
        abuse = asyncio.create_task(_abuse(service.url, model))
        readings: dict[str, list[Reading]] = {}
        period_s = minutes * 60 / _READINGS
        began_s = time.monotonic()
        for number in range(_READINGS):
            await asyncio.sleep(max(0.0, began_s + (number + 1) * period_s - time.monotonic()))
            for name, reading in _read(service).items():
                readings.setdefault(name, []).append(reading)
        abuse.cancel()
        abused = (await asyncio.gather(abuse, return_exceptions=True))[0]
        outcomes = await load.end()
        await load.close()
        left = service.end()
    if any(len(one) != _READINGS for one in readings.values()):
        raise RuntimeError("a process has ended meanwhile")
    return {
        **machine(),
        "minutes": minutes,
        "clients": clients,
        "completed": outcomes.completed,
        "lost": outcomes.lost,
        "refused": dict(outcomes.refused),
        "abuse": abused if isinstance(abused, int) else str(abused),
        "processes": {name: _growth(one) for name, one in readings.items()},
        "left_at_the_end": left,
    }


async def _abuse(url: str, model: str) -> int:
    """Requests that come to nothing, until it is cancelled; returns how many."""
    sent = 0
    body = {"model": model, "prompt": "canary " * 200, "max_tokens": 200, "stream": True}
    with contextlib.suppress(asyncio.CancelledError):
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    async with client.stream("POST", "/v1/completions", json=body) as answer:
                        await anext(answer.aiter_bytes(), None)  # and leaves
                with contextlib.suppress(httpx.HTTPError):
                    await client.post("/v1/completions", json={**body, "model": "none"})
                    await client.post("/v1/completions", json={**body, "max_tokens": 1 << 20})
                    await client.post("/v1/chat/completions", content=b'{"messages": [' * 500)
                    await client.post("/tokenize", json={"model": model, "prompt": "canary " * 20000})
                sent += 5
                await asyncio.sleep(_ABUSE_PAUSE_S)
    return sent


def _read(service: Service) -> dict[str, Reading]:
    """Reads each process, by name; several of a kind are numbered."""
    found = {"main": service.pid}
    for kind in PROCESSES:
        pids = service.processes(kind)
        found |= {kind if len(pids) == 1 else f"{kind} {number}": pid for number, pid in enumerate(pids, start=1)}
    return {name: _reading(pid) for name, pid in found.items()}


def _reading(pid: int) -> Reading:
    values = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(values["RssAnon"].split()[0]), len(list(Path(f"/proc/{pid}/fd").iterdir())), int(values["Threads"])


def _growth(readings: Sequence[Reading]) -> dict[str, object]:
    """Medians of the second and of the last fifth."""
    fifth = len(readings) // 5
    before = [statistics.median(column) for column in zip(*readings[fifth : 2 * fifth], strict=True)]
    after = [statistics.median(column) for column in zip(*readings[-fifth:], strict=True)]
    return {
        "memory_mib": [round(before[0] / 1024, 1), round(after[0] / 1024, 1)],
        "memory_growth": round(after[0] / before[0] - 1, 4),
        "descriptors": [before[1], after[1]],
        "threads": [before[2], after[2]],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="redoubt bench soak", description="Whether a busy service grows.")
    parser.add_argument("--config", type=Path, help="a service's file; by default two workers of the embedded model")
    parser.add_argument("--clients", type=at_least(1), default=16)
    parser.add_argument("--minutes", type=at_least(1), default=60)
    parser.add_argument("--out", type=Path, help="a file for the result as JSON")
    options = parser.parse_args(arguments)

    def measure() -> dict[str, object]:
        return asyncio.run(measure_soak(options.config, options.clients, options.minutes))

    return print_result(measure, (RuntimeError, OSError, httpx.HTTPError), indent=None, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
