"""What benches share: this machine, the commit that runs, option types, and the end of a command.

Knows no engine and no model, and not what the machine can do at most (`bench.rates`).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn

from kernels import _native

ROOT: Final = Path(__file__).parent.parent


NO_CODE: Final = ("docs", "bench/results")
"""Folders in which a change makes no other code, such as the results of the bench that runs."""
_PLAIN: Final = re.compile(r"([\[{])\n\s+([^\[\]{}]*?)\n\s+([\]}])")
_LINE: Final = 100


def commit() -> str:
    """The commit this code was run from, or the installed version where there is no repository.

    It ends in -dirty if the code has uncommitted changes.
    """
    git = ["git", "-C", str(ROOT)]
    excluded = [f":(exclude){folder}" for folder in NO_CODE]
    try:
        if Path(_output_of([*git, "rev-parse", "--show-toplevel"])) != ROOT.resolve():
            return _version()  # installed below another repository, whose commits say nothing of this code
        name = _output_of([*git, "describe", "--always", "--abbrev=12", "--match="])
        changed = _output_of([*git, "status", "--porcelain", "--untracked-files=no", "--", ".", *excluded])
        return f"{name}-dirty" if changed else name
    except (OSError, subprocess.CalledProcessError):
        return _version()


def _version() -> str:
    try:
        return version("redoubt")
    except PackageNotFoundError:
        return "unknown"


def _output_of(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def memory_bytes(file: str, name: str) -> int:
    """An entry of /proc/meminfo ("MemAvailable") or /proc/self/status ("VmRSS"). Raises OSError if it is not there."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{file} has no {name}")


def process_resident_bytes() -> int:
    """Resident memory of this process, mapped files included."""
    return memory_bytes("/proc/self/status", "VmRSS")


def available_memory_bytes() -> int:
    """Memory that the kernel says is available without swapping."""
    return memory_bytes("/proc/meminfo", "MemAvailable")


def exit_on_end_signals() -> None:
    """Lets SIGTERM and SIGHUP raise SystemExit, so that what a bench has started is ended, and written what it has."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))


class OneLineParser(argparse.ArgumentParser):
    """argparse's, which says in one line what is wrong with a command line and where to read on, as `redoubt` does."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        self.exit(2, f"redoubt: {message}; see {self.prog} -h\n")


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers of at least `least`, for argparse."""

    def parse(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        return int(text)

    return parse


def number_list(text: str) -> tuple[int, ...]:
    """Different positive numbers with commas, for argparse."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of different numbers from 1 on, as 1,8,32")
    return numbers


def json_text(result: object) -> str:
    """JSON to be kept, with an indent: a short list or object of plain values is one line."""

    def one_line(found: re.Match[str]) -> str:
        text = found[1] + re.sub(r"\n\s+", " ", found[2]) + found[3]
        return text if len(text) <= _LINE else found[0]

    # Only JSON's own line breaks are ones: those of texts are escaped.
    return _PLAIN.sub(one_line, json.dumps(result, indent=1)) + "\n"


def check_writable(out: Path | None) -> None:
    """Makes the folder of a result's file. Raises OSError now rather than after measuring if it can't be written."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
            raise OSError(f"--out: {out} can't be written")


def print_result(
    measure: Callable[[], object], errors: tuple[type[Exception], ...], *, indent: int | None, out: Path | None = None
) -> int:
    """Prints what `measure` returns as JSON, or one of `errors` on the standard error. Returns the exit status.

    out: a file that gets the JSON too.
    """
    try:
        result = measure()
        if out is not None:
            out.write_text(json_text(result), encoding="utf-8")
    except errors as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=indent))
    return 0


def machine() -> dict[str, Any]:
    """Facts about this machine for a result."""
    return {"cpu": _native.cpu_model(), "commit": commit()}
