"""Prints a comparison's JSON as a Markdown table: `python -m bench.compare_table X.json ...`. Does not measure."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "redoubt"


def best_peer(result: Mapping[str, Any], work: str) -> str | None:
    """The fastest engine at a work that is not one of ours; None where no peer has a figure."""
    medians = {
        name: engine["results"].get(work, {}).get("median")
        for name, engine in result["engines"].items()
        if name != OURS and not name.startswith(f"{OURS}_")  # ours with another KV or compute type
    }
    there = {name: median for name, median in medians.items() if median is not None}
    return max(there, key=there.__getitem__, default=None)


def table(result: Mapping[str, Any]) -> str:
    """The table: tokens a second of each engine, our share of the machine's limit, and our ratio to the best peer."""
    engines = result["engines"]
    others = [name for name in engines if name != OURS]
    variants = [name for name in others if name.startswith(f"{OURS}_")]
    columns = [f"{result['model']}, tokens/s", "limit", OURS, "share of limit", *others, "ratio to best peer"]
    lines = [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * (5 + len(others))}",
    ]
    for name, work in result["works"].items():
        ours = engines[OURS]["results"].get(name, {}).get("median")
        limit = work["limit_tokens_per_s"]
        rates = {peer: engines[peer]["results"].get(name, {}) for peer in others}
        cells = {
            one: f"{rate['median']:.1f}" if "median" in rate else rate.get("none", "-")[:60]
            for one, rate in rates.items()
        }
        best = best_peer(result, name)
        ratio = "-"
        if best is not None and name in result["ratios"][best]:
            found = result["ratios"][best][name]
            ratio = f"{found['of_medians']} ({found['lowest']} to {found['highest']})"
            for variant in variants:
                own = result.get("ratios_of_variants", {}).get(variant, {}).get(best, {}).get(name)
                cells[variant] += f" ({own['of_medians']}x)" if own else ""
        share = "-" if ours is None else f"{ours / limit:.0%}"
        shown = "-" if ours is None else f"{ours:.1f}"
        lines.append(
            f"| {name} | {limit:.0f} ({work['limited_by']}) | {shown} | {share} | "
            f"{' | '.join([*cells.values(), ratio])} |"
        )
    lines += ["", f"{result['cpu']}, {result['threads']} threads, commit {result['commit']}. `{result['command']}`", ""]
    limits = result["limits"]
    lines.append(
        f"Limits in this run: memory read {limits['read_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"{limits['instruction']} {limits['macs_per_s'] / 1e9:.0f} G multiply-adds/s."
    )
    lines += [f"- {name}: {engine['version']}; {engine['settings']}" for name, engine in engines.items()]
    lines += [f"- {name} is missing: {reason}" for name, reason in result["missing"].items()]
    lines += [f"- {crash['engine']} crashed at {crash['work']}: {crash['reason'][:300]}" for crash in result["crashes"]]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    for path in arguments:
        print(table(json.loads(Path(path).read_text())), end="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
