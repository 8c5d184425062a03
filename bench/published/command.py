"""`redoubt bench published`: measures what stands beside published figures, and writes docs/published.md from it.

    redoubt bench published [--only NAME,...] [--since DAY] [--again] [--threads N] [--data FOLDER]
        [--conversations FILE]
    redoubt bench published --list | --page-only

Each result is a command of its own with a JSON in --results, called NAME-MACHINE, or NAME where machines make no
difference. What this machine has there is not measured again, unless --again or --since asks for it; an interrupted run
goes on with the same command, but with --again from the start. What fails or lacks its data is said, and leaves what is
there as it is. The page shows the results of all machines. All of it takes hours.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.common import ROOT, OneLineParser, at_least, exit_on_end_signals, json_text, machine
from bench.cores import default_threads
from bench.models import EMBEDDED_NAME
from bench.places import shown_command
from bench.processor import machine_facts, this_processor
from bench.published.page import written
from bench.published.results import ANYWHERE, Results

_BENCH: Final = ("redoubt", "bench")
_TABLES: Final = (
    "python", "-m", "bench.eval.quality_tables", "CHECKPOINT", "--name", "smollm2-135m", "--work", "build/quality",
    "--data", "DATA", "--results", "RESULTS", "--tables",
)  # fmt: skip
_TASKS: Final = (
    *("--limit", "hellaswag=400", "--limit", "winogrande=600", "--limit", "piqa=400", "--limit", "lambada=400"),
)
_GEMMA: Final = (
    "python", "-m", "bench.eval.quality_tables", "DATA/gemma-3-270m-q4_k_m.gguf", "--name", "gemma3-270m", "--work",
    "build/quality-gemma", "--data", "DATA", "--results", "RESULTS", "--tables",
)  # fmt: skip
_ORIGINAL: Final = ("python", "-m", "bench.original")
_END: Final = ("--threads", "THREADS", "--out", "OUT")
_LARGE: Final = ("--inputs", "32,1024", "--outputs", "32,256", "--drop", *_END)
_LOADS: Final = (*_BENCH, "loads")
_FIRST: Final = (*_LOADS, "first-token", "--model", "embedded")
_PROGRAMS: Final = {"python": [sys.executable], "redoubt": [sys.executable, "-m", "app.cli"]}
_KEEPING: Final = {"bench.original", "bench.eval.quality_tables"}
"""Commands that keep what they have measured unless told `--again`."""
_WHERE: Final = "docs/quality.md, Measuring, says where data are found, and docs/published.md names the options"
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "original-1.1b": (*_ORIGINAL, "tinyllama-1.1b", "--drop", *_END),
    "original-7b": (*_ORIGINAL, "llama2-7b", *_LARGE),
    "original-7b-8-layers": (*_ORIGINAL, "llama2-7b", "--layers", "8", *_LARGE),
    "original-13b": (*_ORIGINAL, "llama2-13b", *_LARGE),
    "original-13b-4-layers": (*_ORIGINAL, "llama2-13b", "--layers", "4", *_LARGE),
    "original-135m": (*_ORIGINAL, "smollm2-135m", "--inputs", "17", "--outputs", "32", *_END),
    "quality-methods-smollm2-135m": (*_TABLES, "methods", *_TASKS),
    "quality-longbench-smollm2-135m": (*_TABLES, "longbench"),
    "quality-ceval-smollm2-135m": (*_TABLES, "ceval", "--limit", "ceval=2"),
    "quality-ceval-gemma3-270m": (*_GEMMA, "ceval", "--limit", "ceval=3"),
    "quality-weights-smollm2-135m": (*_TABLES, "weights"),
    "quality-groups-smollm2-135m": (*_TABLES, "groups"),
    "quality-groups-gemma3-270m": (*_GEMMA, "groups", "--windows", "5"),
    "quality-smollm2-135m": (
        *("redoubt", "eval", "report", "CHECKPOINT", "--text", "DATA/wikitext2-valid.txt", "--windows", "24"),
        *("--hellaswag", "DATA/hellaswag_val_full.txt", "--work", "build/report", "--out", "OUT"),
    ),
    "gains-embedded": (*_BENCH, "gains", "MODEL", "--data", "CONVERSATIONS", *_END),
    "answers-smollm2-135m": ("python", "-m", "bench.eval.answers", "CHECKPOINT", "--work", "build/quality"),
    "loads-first-token-embedded": (*_FIRST, "--prompts", "8,32,128,512,1024,2048", "--users", "1,4,16", *_END),
    "loads-first-token-embedded-768-users": (*_FIRST, "--prompts", "8", "--users", "768", *_END),
    "loads-first-token-embedded-80-users": (*_FIRST, "--prompts", "1024", "--users", "80", *_END),
    "loads-concurrency-embedded": (*_LOADS, "concurrency", "--model", "embedded", *_END),
    "loads-start-embedded": (*_LOADS, "start", "--model", "embedded", *_END),
    "loads-lengths-embedded": (*_LOADS, "lengths", "--model", "embedded", *_END),
    "loads-lengths-1.1b": (*_LOADS, "lengths", "--model", "1.1b", *_END),
    "stages-embedded": (
        *(*_BENCH, "engine", "MODEL", "--threads", "THREADS", "--stages", "--prompt", "512", "--batch", "1,16,64"),
        *("--generate", "32", "--repeats", "2", "--json"),
    ),
    "stages-17-embedded": (
        *(*_BENCH, "engine", "MODEL", "--threads", "THREADS", "--stages", "--prompt", "17", "--decode-context", "17"),
        *("--batch", "1", "--generate", "48", "--repeats", "5", "--json"),
    ),
    "confidential-embedded": (
        *(*_BENCH, "confidential", "MODEL", "--prompt", "1024", "--generate", "256", "--streams", "1"),
        *("--repeats", "5", "--json", "--threads", "THREADS"),
    ),
    "kernels-4096x4096": (
        *("python", "-m", "bench.kernels", "--only", "4096x4096", "--batch", "1,2,4,8,16,32,64,128,512"),
        *("--seconds", "0.3", "--json", "--threads", "THREADS"),
    ),
    "kernel-waits-embedded": ("python", "-m", "bench.experiments.kernel_waits", "MODEL", "--threads", "THREADS"),
    "kv-error-embedded": ("python", "-m", "bench.experiments.kv_error", "MODEL", "DATA/wikitext2-valid.txt", "--json"),
}
"""By the beginning of the JSON's name. Those without OUT or RESULTS print the JSON."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    exit_on_end_signals()
    results = Results(options.results)
    status = 0
    try:
        for name in [name for name in COMMANDS if any(text in name for text in options.only)]:
            reason = "" if options.page_only else _reason(name, results, options)
            command = _filled(name, options)
            if options.list:
                print(f"{name}: {reason or 'is there'}: {shlex.join(command)}")
            elif reason:
                print(f"redoubt: {name} ({reason}): {shlex.join(command)}", file=sys.stderr, flush=True)
                status = max(status, _run(name, command, options))
        if not options.list and options.page.exists():  # an installed package has no documentation
            text = options.page.read_text(encoding="utf-8")
            options.page.write_text(written(text, results), encoding="utf-8")
    except KeyboardInterrupt:
        print("redoubt: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"redoubt: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="redoubt bench published", description="What stands beside published figures.")
    parser.add_argument("--list", action="store_true", help="only say what there is to measure, what is there, and how")
    parser.add_argument("--page-only", action="store_true", help="only write the page anew")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""], metavar="NAME,...",
                        help="results whose names have one of these texts")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--since", type=_day, metavar="DAY", help="also what was measured before that day, 2026-11-28")
    parser.add_argument("--threads", type=at_least(1), default=default_threads(), help="(default %(default)s)")
    parser.add_argument("--data", type=Path, default=Path("sets"), help="the sets' own files (default: %(default)s)")
    parser.add_argument("--conversations", type=Path, default=Path("conversations.json"), metavar="FILE",
                        help="real conversations (default: %(default)s)")  # fmt: skip
    parser.add_argument("--model", type=Path, default=ROOT / "models" / EMBEDDED_NAME, help="(default: the embedded)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="folder of the JSONs")
    parser.add_argument(
        "--page", type=Path, default=ROOT / "docs" / "published.md", help="(default: docs/published.md)"
    )
    return parser


def _day(text: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no day as 2026-11-28")
    return text


def _reason(name: str, results: Results, options: argparse.Namespace) -> str:
    """Why a result is to be measured; empty if this machine's is there."""
    files = results.of(name)
    here = files if name.startswith(ANYWHERE) else [one for one in files if one.processor == this_processor().name]
    if not here:
        return "is there of other machines only" if files else "is not there"
    if options.since and str(here[-1].result.get("measured_at", "")) < options.since:
        return f"was measured before {options.since}, or does not say when"
    return "again" if options.again else ""


def _out(name: str, options: argparse.Namespace) -> Path:
    """Where the result goes."""
    if name.startswith(ANYWHERE):
        return Path(options.results / f"{name}.json")
    slug = re.sub(r"[^a-z0-9]+", "-", this_processor().name.lower().replace("zen ", "zen")).strip("-")
    return Path(options.results / f"{name}-{slug}.json")


def _filled(name: str, options: argparse.Namespace) -> list[str]:
    """The command with this machine's files and threads, its program as COMMANDS has it."""
    places = {
        "MODEL": options.model, "CHECKPOINT": options.model.with_suffix(".gguf"), "THREADS": options.threads,
        "DATA": options.data, "CONVERSATIONS": options.conversations, "RESULTS": options.results,
        "OUT": _out(name, options),
    }  # fmt: skip
    first, *rest = COMMANDS[name]
    words = [first]
    for word in rest:
        place, slash, below = word.partition("/")
        words.append(f"{places[place]}{slash}{below}" if place in places else word)
    keeps = _KEEPING & set(COMMANDS[name])
    return [*words, *(["--again"] if keeps and (options.again or options.since) else [])]


def _lacking(name: str, options: argparse.Namespace) -> Path | None:
    """A file of data that the command names and that is not there."""
    words = zip(COMMANDS[name], _filled(name, options), strict=False)
    files = [Path(word) for asked, word in words if asked == "CONVERSATIONS" or asked.startswith("DATA/")]
    return next((file for file in files if not file.exists()), None)


def _run(name: str, command: Sequence[str], options: argparse.Namespace) -> int:
    """Runs one; a failure is said, and the others go on. Returns 0 or 1. Raises OSError, KeyboardInterrupt."""
    if (file := _lacking(name, options)) is not None:
        print(f"redoubt: {name} is not measured: there is no {file}; {_WHERE}", file=sys.stderr)
        return 1
    program, *rest = command
    words = [*_PROGRAMS[program], *rest]
    out = _out(name, options)
    prints = not {"OUT", "RESULTS"} & set(COMMANDS[name])
    partial = out.with_suffix(".partial")
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        with partial.open("w", encoding="utf-8") if prints else nullcontext(sys.stderr) as file_or_stderr:
            ended = subprocess.run(words, stdout=file_or_stderr, check=False)
        if ended.returncode == 0:
            _keep(partial if prints else out, out, {"measured_at": began_at, "command": shown_command(command)})
            return 0
        print(f"redoubt: {name}: ended with status {ended.returncode}; what it said is above", file=sys.stderr)
    except ValueError as error:
        print(f"redoubt: {name}: what it printed is no JSON ({error})", file=sys.stderr)
    finally:
        if prints:
            partial.unlink(missing_ok=True)
    return 1


def _keep(found: Path, out: Path, run: Mapping[str, Any]) -> None:
    """Writes the result with what it does not say of its machine and its run. Raises ValueError if it is no JSON."""
    result = json.loads(found.read_text(encoding="utf-8"))
    about = {**machine(), "machine": machine_facts(this_processor()), **run}
    if found != out or about.keys() - result.keys():
        out.write_text(json_text({**about, **result}), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
