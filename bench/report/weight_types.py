"""The section about weight types: memory, load time and perplexity of a checkpoint's conversions.

Reuses what `redoubt eval` measures with. A converted folder has one type, and only that is measured.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.common import available_memory_bytes
from bench.eval.open_model import ModelOptions, OpenModel
from bench.eval.perplexity import perplexity
from bench.eval.report import probe_load
from bench.eval.text_windows import read_text, text_windows
from bench.report.published import LABEL, TYPES
from bench.report.section import Result, Section, Setup
from bench.report.subject import SERVED_QTYPE, Subject
from bench.report.texts import megabytes, number
from bench.report.view import Bars, Table, View
from quant.packed.packed_file import FILE_NAME

WINDOW_TOKENS: Final = 512
_CONVERTED: Final = ("int8", SERVED_QTYPE, "asym_int4", "lut4")


def qtypes(subject: Subject) -> tuple[str, ...]:
    """The types to measure: for a checkpoint its exact values and four conversions."""
    return (subject.qtype, *_CONVERTED) if subject.is_checkpoint else (subject.qtype,)


def measure(setup: Setup) -> Result:
    """A row for each type; each is kept in the journal as it comes. Raises QuantError, EvalError, OSError."""
    subject, options = setup.subject, setup.options
    todo = qtypes(subject)
    subject.check_disk(todo, keep=options.keep)
    rows = []
    for qtype in todo:
        rows.append(setup.journal.get(f"types/{qtype}", partial(_row, setup, qtype)))
        if qtype != SERVED_QTYPE and not options.keep:
            subject.remove(qtype)
    return {
        "is_checkpoint": subject.is_checkpoint,
        "is_random": subject.is_random,
        "exact": subject.qtype if subject.is_checkpoint else None,
        "text": options.text.name if options.text else None,
        "windows": options.windows,
        "window_tokens": WINDOW_TOKENS,
        "rows": rows,
    }


def _row(setup: Setup, qtype: str) -> Result:
    subject, options = setup.subject, setup.options
    needed, free = subject.file_bytes(qtype), available_memory_bytes()
    if needed > free:
        reason = f"needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are available"
        return {"qtype": qtype, "none": reason}
    setup.tell(f"{qtype}")
    began_s = time.monotonic()
    folder = subject.converted(qtype)
    conversion_s = time.monotonic() - began_s
    row = {"qtype": qtype, "file_bytes": (folder / FILE_NAME).stat().st_size}
    if subject.is_checkpoint:
        row["conversion_s"] = conversion_s
    row |= probe_load(folder, options.threads)
    if options.text is not None and not subject.is_random:
        row |= _perplexity(setup, qtype, folder, options.text)
    return row


def _perplexity(setup: Setup, qtype: str, folder: Path, text: Path) -> Result:
    is_exact = setup.subject.is_checkpoint and qtype == setup.subject.qtype
    opened = OpenModel(folder, folder, is_exact, ModelOptions(setup.options.threads))
    windows = text_windows(opened.tokenizer(), read_text(text), text, WINDOW_TOKENS, setup.options.windows)
    with opened.load(WINDOW_TOKENS) as model, _counted(setup, len(windows), qtype) as tick:
        return perplexity(model, windows, setup.journal, f"perplexity/{qtype}", tick)


@contextmanager
def _counted(setup: Setup, windows: int, qtype: str) -> Iterator[Any]:
    setup.tell(f"{qtype}: perplexity, {windows} windows of text")
    yield lambda: None


def view(result: Mapping[str, Any]) -> View:
    """Bars of what was measured, and one table."""
    rows = [row for row in result["rows"] if "none" not in row]
    names = [row["qtype"] for row in rows]
    scored = [row for row in rows if "perplexity" in row]
    charts = []
    if len(rows) > 1:
        memory = [row["resident_bytes"] / 1e6 for row in rows]
        charts = [
            Bars(title="Resident memory", y_label="MB", categories=names, series={"this model": memory}),
            Bars(
                title="Load time",
                y_label="ms",
                categories=names,
                series={"this model": [row["load_s"] * 1e3 for row in rows]},
            ),
        ]
        if len(scored) > 1:
            charts.append(
                Bars(
                    title="Perplexity",
                    y_label="perplexity (lower is better)",
                    categories=[row["qtype"] for row in scored],
                    series={"this model": [row["perplexity"] for row in scored]},
                    errors=[row["perplexity_stderr"] for row in scored],
                    decimals=2,
                )
            )
    table = Table(
        caption="By weight type",
        columns=["type", "file, MB", "conversion, s", "load, s", "resident, MB", "perplexity"],
        rows=[_cells(row) for row in result["rows"]],
        published=["memory, MB", "load, s", "perplexity"],
        note=f"Published figures are of another model on other hardware ({LABEL.removeprefix('published: ')}),"
        " their perplexity of another text (14 English sets of LongBench): only ratios between types compare.",
    )
    return View(sentences=_sentences(result), charts=charts, tables=[table])


def _cells(row: Mapping[str, Any]) -> list[str]:
    known = TYPES.get(row["qtype"])
    theirs = ["-", "-", "-"]
    if known is not None:
        load = "-" if known.load_s is None else f"{known.load_s:g}"
        theirs = [f"{known.memory_mb:,.0f}", load, f"{known.perplexity:.4f}"]
    if "none" in row:
        return [row["qtype"], "not measured", "", "", "", "", *theirs]
    score = f"{row['perplexity']:.3f} ± {row['perplexity_stderr']:.2f}" if "perplexity" in row else "not measured"
    conversion = f"{row['conversion_s']:.1f}" if "conversion_s" in row else "-"
    return [
        row["qtype"], megabytes(row["file_bytes"]), conversion, number(row["load_s"]), megabytes(row["resident_bytes"]),
        score, *theirs,
    ]  # fmt: skip


def _sentences(result: Mapping[str, Any]) -> list[str]:
    sentences = []
    if result["is_checkpoint"]:
        sentences.append(
            f"{result['exact']} has the checkpoint's own values; its perplexity is computed in fp32. The other"
            " types are rounded to nearest in groups of 64, an embedding or tied head of 4-bit types to int8, and run"
            " as they are served, with int8 activations. `redoubt eval report` compares better methods of rounding."
        )
    else:
        sentences.append("The model is a converted folder, so that only its own type could be measured.")
    sentences += [f"{row['qtype']} was not measured: it {row['none']}." for row in result["rows"] if "none" in row]
    if result["is_random"]:
        sentences.append("The weights are random, so that their perplexity means nothing: it was not measured.")
    elif result["text"] is None:
        sentences.append("Perplexity was not measured: that needs a text (`--text FILE`).")
    else:
        sentences.append(
            f"Perplexity is of the first {result['windows']} windows of {result['window_tokens']} tokens of"
            f" {result['text']}; ± is its standard error."
        )
    return sentences


def _expected_s(setup: Setup) -> float:
    has_text = setup.options.text is not None and not setup.subject.is_random
    scored = setup.pace.scored_s(setup.options.windows * WINDOW_TOKENS) if has_text else 0.0
    return len(qtypes(setup.subject)) * (setup.pace.conversion_s() + scored)


SECTION = Section(
    "types",
    "Memory, load time and perplexity by weight type",
    "Each type is loaded in a process of its own, from the page cache; load time ends with the first computed token,"
    " and resident memory is the process' at that moment, with the weights and Python.",
    measure,
    view,
    _expected_s,
)
