"""Gathers results of `redoubt eval ... --json` into one comparison of a checkpoint's conversions.

Every conversion's result is paired with the unquantized checkpoint's on the same tasks or windows. A comparison is
JSON, which `bench.eval.comparison_page` formats. Does not measure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.common import machine
from bench.eval.choice_files import json_lines
from bench.eval.errors import EvalError
from bench.eval.paired import paired_accuracy, paired_perplexity
from bench.processor import machine_facts, this_processor

METRICS: Final[Mapping[str, str]] = {
    "hellaswag": "acc_norm", "piqa": "acc_norm", "winogrande": "acc", "lambada": "acc", "ceval": "acc",
    "multiple-choice": "acc",
}  # fmt: skip
"""Each set's usual metric."""
TEXTS: Final = ("perplexity", "longbench-perplexity")
"""Results with a log probability for every window."""
UNPAIRED: Final = ("kl", "weights")
"""Results that compare with the unquantized checkpoint themselves."""
_FACTS: Final = ("qtype", "group_size", "compute_type", "kv_type", "tier")
_SETTINGS: Final = ("text", "context", "windows", "tokens_of_a_text", "tasks")


def measured_here() -> dict[str, Any]:
    """What a comparison says of the machine, the code and the time."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {**machine(), "machine": machine_facts(this_processor()), "measured_at": now}


def read_results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The results in files of JSON lines. Raises EvalError naming a line that is none."""
    results = []
    for path in paths:
        for number, entry in json_lines(path):
            if entry.get("what") not in (*METRICS, *TEXTS, *UNPAIRED) or not isinstance(entry.get("model"), str):
                raise EvalError(f"{path}: line {number} is no result of `redoubt eval ... --json` that can be compared")
            results.append(entry)
    return results


def compare(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by conversion, named after their folders, with each set's result and how it differs from the baseline's.

    Raises EvalError where a set lacks the baseline, or was measured in two ways.
    """
    baselines = {str(result["what"]): result for result in results if result["unquantized"]}
    settings: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        what = str(result["what"])
        asked = {name: result[name] for name in _SETTINGS if name in result}
        if settings.setdefault(what, asked) != asked:
            raise EvalError(f"{what}: {result['model']} was measured with {asked}, another with {settings[what]}")
        base = baselines.get(what)
        if base is None and what not in UNPAIRED:
            raise EvalError(f"{what}: no result of the unquantized checkpoint to compare {result['model']} with")
        name = "unquantized" if result["unquantized"] else Path(str(result["model"])).name
        row = rows.setdefault(name, {"name": name, "results": {}})
        row |= {fact: result[fact] for fact in _FACTS if fact in result}
        row["results"][what] = _compared(what, result, base)
    order = sorted(rows.values(), key=lambda row: row["name"] != "unquantized")
    return {"settings": settings, "rows": order}


def _compared(what: str, result: Mapping[str, Any], base: Mapping[str, Any] | None) -> dict[str, Any]:
    dropped = ("model", "what", "unquantized", *_FACTS, *_SETTINGS)
    kept = {name: value for name, value in result.items() if name not in dropped}
    if base is None or base is result:
        return kept
    try:
        if what in TEXTS:
            ours, theirs = result["by_window"], base["by_window"]
            if ours["tokens"] != theirs["tokens"]:
                raise ValueError("other windows")
            arguments = theirs["log_probability"], ours["log_probability"], ours["tokens"]
            return kept | {"against_baseline": paired_perplexity(*arguments)}
        metric = METRICS[what]
        return kept | {"against_baseline": paired_accuracy(base["right"][metric], result["right"][metric])}
    except ValueError as error:
        raise EvalError(f"{what}: {result['model']} can't be compared with {base['model']}: {error}") from error


def read_comparison(path: Path) -> dict[str, Any]:
    """A comparison's JSON. Raises EvalError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvalError(f"{path}: is no comparison: {error}") from error
    if not isinstance(value, dict) or "rows" not in value:
        raise EvalError(f"{path}: is no comparison")
    return value
