"""`redoubt bench faults`: the request-loss table of this machine.

    python -m bench.faults.measure --out faults.json
    python -m bench.faults.measure --accounts postgres
    python -m bench.faults.measure --only "a worker is killed"

Starts a service of its own with two workers (or `--config`), accounts and saved pages, puts a load of clients on it
(streams and blocking requests, greedy and seeded; turns of stored conversations, background answers), and makes each
fault once under that load, one after another. Every request is accounted for, and every complete answer's text is
compared with a clean run's. If the main process ends, it is started again at once, as systemd does. A row of the table:

- `completed`; `refused` before the first byte, by status ("connect": no connection); `broken_with_error`: streams that
  ended with an event that says why; `broken_silently`: answers that just ended; `hung`: nothing of a stream for 30 s,
  or no end of a blocking request for 180 s; `wrong`: a text other than the clean run's.
- `first_answer_s`: from the fault until a request that was sent after it was answered.
- `whole_after_s`: until all workers are up. `longest_pause_s`: between two events of a stream that was completed.
- `stored`: turns and background answers (`bench.faults.stored`): what was acknowledged must be there afterwards.
- `left`: processes of the service that ran on when it had ended.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]

from bench.common import OneLineParser, at_least, machine, print_result
from bench.faults.load import Load
from bench.faults.service import Service, service_of
from bench.faults.stored import StoredLoad
from bench.faults.users import KINDS, accounts_of, add_user, log_in
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
    """Changes a setting that no running worker can take over."""
    values = yaml.safe_load(service.config.read_text(encoding="utf-8"))
    engine = values["applications"][0]["args"]["engine"]
    engine["prompt_chunk_tokens"] = 128 if engine.get("prompt_chunk_tokens") != 128 else 256
    service.config.write_text(yaml.safe_dump(values), encoding="utf-8")


def _change_accounts(service: Service) -> None:
    """Changes a setting of the accounts, whose database stays the same."""
    values = yaml.safe_load(service.config.read_text(encoding="utf-8"))
    accounts = values["applications"][0]["args"].get("accounts", {})
    accounts["login_failures"] = 6 if accounts.get("login_failures") != 6 else 5
    service.config.write_text(yaml.safe_dump(values), encoding="utf-8")


def _add_a_model(service: Service) -> None:
    """Adds the same model's files under another name, with a worker of its own."""
    values = yaml.safe_load(service.config.read_text(encoding="utf-8"))
    args = values["applications"][0]["args"]
    further = {name: args[name] for name in ("engine", "worker") if name in args}
    further |= {"model": args["model"] | {"served_name": "second"}}
    values["applications"].append(
        {"name": "second", "route_prefix": None, "import_path": "app.deploy:build_model", "args": further}
    )
    service.config.write_text(yaml.safe_dump(values), encoding="utf-8")


def _remove_a_model(service: Service) -> None:
    values = yaml.safe_load(service.config.read_text(encoding="utf-8"))
    del values["applications"][1:]
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
    "a setting of the accounts is changed in the file": _change_accounts,
    "the service is started anew (SIGUSR1)": _signal_main(signal.SIGUSR1),
    "the main process is killed": _signal_main(signal.SIGKILL),
    "the main process gets SIGTERM": _signal_main(signal.SIGTERM),
    "a model is added in the file": _add_a_model,
    "a model is removed in the file": _remove_a_model,
}

MODELS: frozenset[str] = frozenset(("a model is added in the file", "a model is removed in the file"))
"""Faults that need cores for one more worker; they run one after the other on a service with a single worker."""
RENEWING: frozenset[str] = frozenset(
    name
    for name in FAULTS
    if name.startswith(("the raylet", "the GCS", "the serving", "the main", "both", "a setting"))
) | {"the service is started anew (SIGUSR1)"}
"""Faults after which the service is whole only with other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsOptions:
    config: Path | None
    accounts: str
    clients: int
    only: tuple[str, ...]


async def measure_faults(options: FaultsOptions) -> dict[str, object]:
    """Makes the table. Raises RuntimeError if the service does not become whole, OSError."""
    chosen = options.only or tuple(FAULTS)
    rows: list[dict[str, Any]] = []
    left: list[str] = []
    whole, of_models = (
        [one for one in chosen if one not in MODELS],
        [one for one in FAULTS if one in MODELS & {*chosen}],
    )
    for names, one_worker in ((whole, False), (of_models, options.config is None)):
        if names:
            left += await _measure_on_one_service(options, names, rows, one_worker=one_worker)
    return {
        **machine(),
        "accounts": options.accounts,
        "clients": options.clients,
        "rows": rows,
        "left_at_the_end": left,
    }


async def _measure_on_one_service(
    options: FaultsOptions, names: Sequence[str], rows: list[dict[str, Any]], *, one_worker: bool
) -> list[str]:
    """Adds these rows; returns what was left of the service at its end."""

    def change(values: dict[str, Any]) -> None:
        args = values["applications"][0]["args"]
        if one_worker:
            args["worker"]["count"] = 1
        if accounts is not None:
            args["accounts"] = accounts
            args["memory"] = args.get("memory", {}) | {"folder": str(Path(folder) / "memory")}

    with (
        tempfile.TemporaryDirectory(prefix="redoubt-bench-") as folder,
        accounts_of(options.accounts, Path(folder)) as accounts,
        service_of(options.config, Path(folder), change, None if accounts is None else add_user) as service,
    ):
        await asyncio.to_thread(service.wait_until_answering)
        if accounts is not None:
            service.headers = log_in(service.url)
        workers = _wanted_workers(service.config)
        await asyncio.to_thread(service.wait_until_whole, workers)
        model = service.rows()[0]["model_names"][0]
        load = Load(service.url, model, options.clients, headers=service.headers)
        stored = None if accounts is None else StoredLoad(service.url, model, service.headers)
        await load.learn()
        if stored is not None:
            await stored.learn()
        for name in names:
            row = await _row(service, load, stored, name)
            rows.append({"fault": name, "workers": workers} | row)
            print(_line(rows[-1]), flush=True)
        await load.close()
        if stored is not None:
            await stored.close()
        return service.end()


def _wanted_workers(config: Path) -> int:
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    return sum(int(one["args"].get("worker", {}).get("count", 1)) for one in values["applications"])


async def _row(service: Service, load: Load, stored: StoredLoad | None, name: str) -> dict[str, Any]:
    await asyncio.to_thread(service.wait_until_whole, _wanted_workers(service.config))
    load.start()
    if stored is not None:
        stored.start()
    await asyncio.sleep(_BEFORE_S)
    family, starts = descendants(service.pid), service.starts
    ids = {row["worker_id"] for row in service.rows()}
    load.outcomes.mark()
    began_s = time.monotonic()
    await asyncio.to_thread(FAULTS[name], service)
    workers = _wanted_workers(service.config)
    whole_s = await _until_whole(service, load, workers, began_s, ids if name in RENEWING else set())
    await asyncio.sleep(_AFTER_S)
    outcomes = await load.end()
    kept = None if stored is None else await stored.end()
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
        "stored": None if kept is None else {one.name: getattr(kept, one.name) for one in fields(kept)},
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
    refused = _counts(row["refused"])
    cells = [row["fault"], row["completed"], refused, row["broken_with_error"], row["broken_silently"], row["hung"]]
    cells += [row["wrong"], row["first_answer_s"], row["whole_after_s"], row["longest_pause_s"]]
    if (kept := row["stored"]) is not None:
        told = [_counts(kept[name]) for name in ("turns_refused", "background_refused", "background_failed")]
        cells += [kept["turns"], told[0], kept["turns_lost"] + kept["turns_wrong"]]
        cells += [kept["background"], told[1], told[2], kept["background_lost"] + kept["background_wrong"]]
    return f"| {' | '.join('never' if cell is None else str(cell) for cell in cells)} |"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} ({what})" for what, count in sorted(counts.items())) or "0"


_HEAD = (
    "| fault | completed | refused | broken with an error | broken silently | hung | wrong | answered after, s "
    "| whole after, s | longest pause, s | turns stored | turns refused | turns lost or wrong | background complete "
    "| background refused | background failed | background lost or wrong |\n" + "| --- " * 17 + "|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="redoubt bench faults", description="The request-loss table of this machine.")
    parser.add_argument("--config", type=Path, help="a service's file; by default two workers of the embedded model")
    parser.add_argument("--accounts", choices=KINDS, default="sqlite", help="where the users are; none: no users")
    parser.add_argument("--clients", type=at_least(1), default=16)
    parser.add_argument("--only", action="append", choices=tuple(FAULTS), default=[], metavar="FAULT")
    parser.add_argument("--out", type=Path, help="a file for the result as JSON")
    options = parser.parse_args(arguments)
    print(_HEAD, flush=True)

    def measure() -> dict[str, object]:
        chosen = FaultsOptions(
            config=options.config, accounts=options.accounts, clients=options.clients, only=tuple(options.only)
        )
        return asyncio.run(measure_faults(chosen))

    return print_result(measure, (RuntimeError, OSError, httpx.HTTPError), indent=None, out=options.out)


if __name__ == "__main__":
    raise SystemExit(main())
