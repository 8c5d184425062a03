"""The tables of docs/quality.md: converts a checkpoint, measures the conversions on sets that are there, writes JSON.

    python -m bench.eval.quality_tables CHECKPOINT --name NAME --work FOLDER --data FOLDER --tables methods,groups
        [--only TEXT,...] [--limit SET=N]... [--threads N] [--results bench/results] [--page docs/quality.md]

Each measurement is a run of `redoubt eval`; its result is kept in WORK/results and the conversions in WORK, so that the
same command goes on after an interruption; --again measures all of it anew. --data names a folder with the sets' own
files, under the names in DATA. A set that is missing is said and left out, and so is a conversion that the model's
shape does not allow; but nothing is written where all sets are missing, or one that the comparison there has.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.common import OneLineParser, at_least, json_text
from bench.eval import command
from bench.eval.comparison import compare, measured_here, read_comparison, read_results
from bench.eval.comparison_page import with_comparison
from bench.eval.errors import EvalError
from quant.conversion.convert import convert
from quant.errors import TensorError
from quant.packed.packed_file import is_packed_model

_METHODS: Final = ("rtn", "scale", "quick", "gptq", "signround", "tuned")
_GROUPS: Final = ("gtensor", "gchannel", "g128", "g64", "g32")
UNQUANTIZED: Final = "unquantized"
DATA: Final[Mapping[str, tuple[str, ...]]] = {
    "kl": ("wikitext2-valid.txt", "text.txt"),
    "hellaswag": ("hellaswag_val.jsonl", "hellaswag_val_full.txt"),
    "piqa": ("piqa_dev.jsonl", "piqa_valid.jsonl"),
    "winogrande": ("winogrande_dev.jsonl",),
    "lambada": ("lambada_test.jsonl",),
    "longbench-perplexity": ("longbench",),
    "ceval": ("ceval",),
}
"""The file or folder of each set, in --data; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a table compares, and on what; `kl` and `weights` compare with the checkpoint themselves."""

    conversions: tuple[str, ...]
    """Names as `comparison_page.conversion` reads them."""
    measurements: tuple[str, ...]


TABLES: Final[Mapping[str, Table]] = {
    "groups": Table(
        (
            *(f"sym_int4-{group}-rtn" for group in _GROUPS),
            *(f"asym_int4-{group}-rtn" for group in _GROUPS[2:]),
            *(f"sym_int4-{group}-quick" for group in _GROUPS[2:]),
        ),
        ("weights", "kl"),
    ),
    "methods": Table(
        tuple(f"sym_int4-g64-{method}" for method in _METHODS),
        ("kl", "hellaswag", "winogrande", "piqa", "lambada"),
    ),
    "longbench": Table(
        ("int8-g64-rtn", "sym_int4-g64-rtn", "asym_int4-g64-rtn", "sym_int4-g64-quick"), ("longbench-perplexity",)
    ),
    "weights": Table(
        (
            *("sym_int4-g32-rtn", "sym_int4-g64-rtn", "sym_int4-gchannel-rtn", "asym_int4-g32-rtn"),
            *("asym_int4-g64-rtn", "nf4-g64-rtn", "int8-g64-rtn"),
        ),
        ("weights",),
    ),
    "ceval": Table(("int8-g64-rtn", "sym_int4-g64-rtn", "asym_int4-g64-rtn"), ("ceval",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)

    def run() -> None:
        for name in options.tables:
            _make(name, options)

    return command.exit_status(run)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m bench.eval.quality_tables", description="Make the tables of docs/quality.md."
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a Hugging Face folder, or a GGUF file")
    parser.add_argument("--name", required=True, help="the checkpoint's name in files, as smollm2-135m")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="keeps conversions and results")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the sets' own files")
    parser.add_argument("--tables", type=_names, default=list(TABLES), metavar="TABLE,...", help=",".join(TABLES))
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""], metavar="TEXT,...")
    parser.add_argument("--limit", type=_limit, action="append", default=[], metavar="SET=N", help="a set's first N")
    parser.add_argument("--windows", type=at_least(1), default=24, help="of 512 tokens (default %(default)s)")
    parser.add_argument("--long-tokens", type=at_least(2), default=1024, help="of each long text (default %(default)s)")
    parser.add_argument("--threads", type=at_least(1), help="compute threads (default: all CPUs)")
    parser.add_argument("--again", action="store_true", help="measure also what --work keeps; conversions stay")
    parser.add_argument("--note", action="append", default=[], metavar="TEXT", help="what readers should know")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write the comparisons there (default: WORK)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the tables into this page")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; choose of {', '.join(TABLES)}")
    return names


def _limit(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if name not in DATA or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no SET=N; sets are {', '.join(DATA)}")
    return name, int(number)


def _make(name: str, options: argparse.Namespace) -> None:
    table, left_out = TABLES[name], []
    out = (options.results or options.work) / f"quality-{name}-{options.name}.json"
    data = {what: _data(options.data, what) for what in table.measurements}
    missing = [what for what in table.measurements if data[what] is None and what != "weights"]
    _check_data(name, missing, out, options)
    models: dict[str, Path] = {}
    for each in table.conversions:
        if any(text in each for text in options.only):
            try:
                models[each] = converted(options.checkpoint, options.work, each)
            except TensorError as error:
                left_out.append(f"{each}: {error}")
    left_out += [_lack(what, options) for what in missing]
    began_s, files = time.time(), []
    for what in table.measurements:
        if what not in missing:
            files += list(_measured(name, what, data[what], models, options))
    for text in left_out:
        print(f"redoubt: left out of {name}: {text}", file=sys.stderr)
    notes = [*options.note, *(f"left out: {text}" for text in left_out), *_kept(files, began_s)]
    result = {"model": options.checkpoint.name, **measured_here(), "notes": notes, **compare(read_results(files))}
    order = [UNQUANTIZED, *table.conversions]
    result["rows"].sort(key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
    out.write_text(json_text(result), encoding="utf-8")
    if options.page is not None:
        page = with_comparison(options.page.read_text(encoding="utf-8"), out.stem, result)
        options.page.write_text(page, encoding="utf-8")


def _check_data(name: str, missing: Sequence[str], out: Path, options: argparse.Namespace) -> None:
    """Raises EvalError if too little is there to measure, or less than what the comparison has."""
    lost = [what for what in missing if out.exists() and what in read_comparison(out).get("settings", {})]
    if lost or list(missing) == list(TABLES[name].measurements):
        lacks = "; ".join(_lack(what, options) for what in lost or missing)
        raise EvalError(f"{out.name} is not written: {lacks}; docs/quality.md, Measuring, says where sets are found")


def _lack(what: str, options: argparse.Namespace) -> str:
    return f"{what}: {options.data} has no {' or '.join(DATA[what])}"


def _kept(files: Sequence[Path], began_s: float) -> list[str]:
    """A note on results that an earlier run has measured."""
    older = {path.stem: path.stat().st_mtime for path in files if path.stat().st_mtime < began_s}
    days = sorted({datetime.fromtimestamp(at, UTC).date().isoformat() for at in older.values()})
    return [f"kept from an earlier run ({', '.join(days)}): {', '.join(older)}"] if older else []


def converted(checkpoint: Path, work: Path, name: str) -> Path:
    """The folder of a conversion, made once. Raises QuantError."""
    folder = work / name
    if not is_packed_model(folder):
        work.mkdir(parents=True, exist_ok=True)
        qtype, group, method = name.split("-")
        size: dict[str, Any] = (
            {"group_size": int(group[1:])} if group[1:].isdecimal() else {"extent": group.removeprefix("g")}
        )
        convert(checkpoint, folder, qtype=qtype, method=method, force=folder.exists(), **size)
    return folder


def _data(folder: Path, what: str) -> Path | None:
    return next((folder / name for name in DATA.get(what, ()) if (folder / name).exists()), None)


def _measured(
    table: str, what: str, data: Path | None, models: Mapping[str, Path], options: argparse.Namespace
) -> Iterator[Path]:
    """The files of a measurement's results; those that are there are measured again with --again only."""
    base = options.checkpoint
    if what in ("kl", "weights"):
        # All models at once: the baseline's logits are computed once for all.
        more = ["--baseline", base]
        if what == "kl":
            more += ["--text", data, "--context", 512, "--windows", options.windows]
        yield _run(options, f"{what}-{table}", [what, *models.values(), *more])
        return
    limits = dict(options.limit)
    more = ["--data" if what in ("ceval", "longbench-perplexity") else "--tasks", data]
    more += ["--limit", limits[what]] if what in limits else []
    if what == "longbench-perplexity":
        more += ["--tokens", options.long_tokens, "--context", options.long_tokens]
    for name, path in {UNQUANTIZED: base, **models}.items():
        yield _run(options, f"{what}-{name}", [what, path, *more])


def _run(options: argparse.Namespace, name: str, arguments: Sequence[object]) -> Path:
    """Runs `redoubt eval` unless its result is there. Raises EvalError if it fails, KeyboardInterrupt."""
    path: Path = options.work / "results" / f"{name}.jsonl"
    if path.exists() and not options.again:
        return path
    path.parent.mkdir(exist_ok=True)
    threads = [] if options.threads is None else ["--threads", options.threads]
    partial = path.with_suffix(".partial")
    print(f"redoubt: {name}", file=sys.stderr)
    with partial.open("w", encoding="utf-8") as file, redirect_stdout(file):
        status = command.main([*map(str, [*arguments, *threads]), "--json"])
    if status == 130:
        raise KeyboardInterrupt
    if status:
        raise EvalError(f"{name} was not measured: the reason is above")
    partial.replace(path)
    return path


if __name__ == "__main__":
    raise SystemExit(main())
