"""`redoubt bench faults`: the request-loss table of this machine.

    python -m bench.faults.measure --json --out faults.json
    python -m bench.faults.measure --only "a worker is killed"

Starts a service of its own with two workers (or `--config`), puts a load of clients on it (streams and blocking
requests, greedy and seeded), and makes each fault once under that load, one after another. Every request is accounted
for, and every complete answer's text is compared with a clean run's. If the main process ends, it is started again at
once, as systemd does. A row of the table:

- `completed`; `refused` before the first byte, by status ("connect": no connection); `broken_with_error`: streams that
  ended with an event that says why; `broken_silently`: answers that just ended; `hung`: nothing for 30 s; `wrong`: a
  text other than the clean run's.
- `first_answer_s`: from the fault until a request that was sent after it was answered.
- `whole_after_s`: until all workers are up. `longest_pause_s`: between two events of a stream that was completed.
- `left`: processes of the service that ran on when it had ended.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bench.common import OneLineParser, at_least, machine, print_result
from bench.faults.load import Load
from bench.faults.service import Service, service_of
from bench.processes import descendants, left_of

_BEFORE_S, _AFTER_S = 3.0, 3.0
_LONGEST_ROW_S = 150.0
_PAUSED_S = 15.0


def _kill(*kinds: str, number: int = signal.SIGKILL, all_of_them: bool = False) -> Callable[[Service], None]:
    def make(service: Service) -> None:
        found = [service.processes(kind) for kind in kinds]
        for pids in found:
            for pid in pids if all_of_them else pids[:1]:
                os.kill(pid, number)

    return make


def _pause_a_worker(service: Service) -> None:
    pid = service.processes("worker")[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(_PAUSED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


def _change_a_setting(service: Service) -> None:
    """One that no running worker can take over."""
    values = yaml.safe_load(service.config.read_text(encoding="utf-8"))
    engine = values["applications"][0]["args"]["engine"]
    engine["prompt_chunk_tokens"] = 128 if engine.get("prompt_chunk_tokens") != 128 else 256
    service.config.write_text(yaml.safe_dump(values), encoding="utf-8")


def _signal_main(number: int) -> Callable[[Service], None]:
    return lambda service: os.kill(service.pid, number)


FAULTS: dict[str, Callable[[Service], None]] = {
    "nothing": lambda service: None,
    "a worker is killed": _kill("worker"),
    "a worker gets SIGTERM": _kill("worker", number=signal.SIGTERM),
    "a worker is stopped for 15 s": _pause_a_worker,
    "both workers are killed": _kill("worker", all_of_them=True),
    "the ingress is killed": _kill("ingress"),
    "a worker and the ingress are killed": _kill("worker", "ingress"),
    "HAProxy is killed": _kill("haproxy", all_of_them=True),
    "HAProxy's manager is killed": _kill("manager"),
    "Serve's controller is killed": _kill("controller"),
    "the controller and a worker are killed": _kill("controller", "worker"),
    "the raylet is killed": _kill("raylet"),
    "the GCS is killed": _kill("gcs"),
    "the GCS and a worker are killed": _kill("gcs", "worker"),
    "the serving program is killed": _kill("serving"),
    "a setting is changed in the file": _change_a_setting,
    "the service is started anew (SIGUSR1)": _signal_main(signal.SIGUSR1),
    "the main process is killed": _signal_main(signal.SIGKILL),
    "the main process gets SIGTERM": _signal_main(signal.SIGTERM),
}


RENEWING: frozenset[str] = frozenset(
    name
    for name in FAULTS
    if name.startswith(("the raylet", "the GCS", "the serving", "the main", "both", "a setting"))
) | {"the service is started anew (SIGUSR1)"}
"""Faults after which the service is whole only with other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsOptions:
    """What to measure."""

    config: Path | None
    clients: int
    only: tuple[str, ...]


async def measure_faults(options: FaultsOptions) -> dict[str, object]:
    """Makes the table. Raises RuntimeError if the service does not become whole, OSError."""
    chosen = options.only or tuple(FAULTS)
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder,
        service_of(options.config, Path(folder)) as service,
    ):
        workers = _wanted_workers(service.config)
        await asyncio.to_thread(service.wait_until_whole, workers)
        load = Load(service.url, service.rows()[0]["model_names"][0], options.clients)
        await load.learn()
        for name in chosen:
            row = await _row(service, load, name, workers)
            rows.append({"fault": name} | row)
            print(_line(rows[-1]), flush=True)
        await load.close()
        left = service.end()
    return {**machine(), "workers": workers, "clients": options.clients, "rows": rows, "left_at_the_end": left}


def _wanted_workers(config: Path) -> int:
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    return sum(int(one["args"].get("worker", {}).get("count", 1)) for one in values["applications"])


async def _row(service: Service, load: Load, name: str, workers: int) -> dict[str, Any]:
    await asyncio.to_thread(service.wait_until_whole, workers)
    load.start()
    await asyncio.sleep(_BEFORE_S)
    family, starts = descendants(service.pid), service.starts
    ids = {row["worker_id"] for row in service.rows()}
    load.outcomes.mark()
    began_s = time.monotonic()
    await asyncio.to_thread(FAULTS[name], service)
    whole_s = await _until_whole(service, load, workers, began_s, ids if name in RENEWING else set())
    await asyncio.sleep(_AFTER_S)
    outcomes = await load.end()
    left = left_of(family, 1.0) if service.starts > starts else []
    return {
        "completed": outcomes.completed,
        "refused": dict(outcomes.refused),
        "broken_with_error": outcomes.broken_with_error,
        "broken_silently": outcomes.broken_silently,
        "hung": outcomes.hung,
        "wrong": outcomes.wrong,
        "first_answer_s": None if outcomes.first_answer_s is None else round(outcomes.first_answer_s, 1),
        "whole_after_s": None if whole_s is None else round(whole_s, 1),
        "longest_pause_s": round(outcomes.longest_pause_s, 1),
        "restarts": service.starts - starts,
        "new_workers": len({row["worker_id"] for row in service.rows()} - ids),
        "left": left,
    }


async def _until_whole(service: Service, load: Load, workers: int, began_s: float, not_these: set[str]) -> float | None:
    """Seconds from the fault until requests are answered and all workers are up; None: not in time."""
    await asyncio.sleep(1.0)  # a loss is not noticed at once
    while time.monotonic() - began_s < _LONGEST_ROW_S:
        if service.has_ended:
            await asyncio.to_thread(service.keep_up)
        up = {row["worker_id"] for row in await asyncio.to_thread(service.rows) if row["state"] == "alive"}
        if len(up - not_these) == workers == len(up) and load.outcomes.first_answer_s is not None:
            return time.monotonic() - began_s
        await asyncio.sleep(0.2)
    return None


def _line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    refused = ", ".join(f"{count} ({status})" for status, count in sorted(row["refused"].items())) or "0"
    cells = [row["fault"], row["completed"], refused, row["broken_with_error"], row["broken_silently"], row["hung"]]
    cells += [row["wrong"], row["first_answer_s"], row["whole_after_s"], row["longest_pause_s"]]
    return f"| {' | '.join('never' if cell is None else str(cell) for cell in cells)} |"


_HEAD = (
    "| fault | completed | refused | broken with an error | broken silently | hung | wrong | answered after, s "
    "| whole after, s | longest pause, s |\n" + "| --- " * 10 + "|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the command line says; returns the exit status."""
    parser = OneLineParser(prog="redoubt bench faults", description="The request-loss table of this machine.")
    parser.add_argument("--config", type=Path, help="a service's file; by default two workers of the embedded model")
    parser.add_argument("--clients", type=at_least(1), default=16)
    parser.add_argument("--only", action="append", choices=tuple(FAULTS), default=[], metavar="FAULT")
    parser.add_argument("--out", type=Path, help="a file for the result as JSON")
    options = parser.parse_args(arguments)
    print(_HEAD, flush=True)

    def measure() -> dict[str, object]:
        chosen = FaultsOptions(config=options.config, clients=options.clients, only=tuple(options.only))
        return asyncio.run(measure_faults(chosen))

    return print_result(measure, (RuntimeError, OSError), indent=None, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
