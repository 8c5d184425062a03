"""Draws a comparison's JSON: `python -m bench.plots X.json --out FOLDER`. Does not measure.

Up to three SVG files, depending on the works: tokens a second over streams, and over context (logarithmic axes), and
the time of the first token over the prompt's length (the prefill's seconds). Points are medians, bars the lowest and
highest round. Needs matplotlib (the `bench` extra).
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

DECODE = re.compile(r"decode (\d+) at (\d+)")
PREFILL = re.compile(r"prefill (\d+)")
Points = dict[str, list[tuple[int, float, float, float]]]
"""By engine: x, and the median, lowest and highest of the rounds."""


def points_over_streams(result: Mapping[str, Any]) -> Points:
    """Decoding at the most frequent context: tokens a second of all streams."""
    contexts = [int(match[2]) for name in result["works"] if (match := DECODE.fullmatch(name))]
    usual = max(contexts, key=contexts.count, default=0)
    return _points(result, lambda match, rate: (int(match[1]), rate) if int(match[2]) == usual else None, DECODE)


def points_over_context(result: Mapping[str, Any]) -> Points:
    """Decoding of one stream: tokens a second."""
    return _points(result, lambda match, rate: (int(match[2]), rate) if match[1] == "1" else None, DECODE)


def points_of_first_token(result: Mapping[str, Any]) -> Points:
    """Seconds of a prompt."""
    return _points(result, lambda match, rate: (int(match[1]), int(match[1]) / rate), PREFILL)


def _points(result: Mapping[str, Any], point: Any, pattern: re.Pattern[str]) -> Points:
    points: Points = {}
    for engine, engine_result in result["engines"].items():
        found = []
        for name, figures in engine_result["results"].items():
            match = pattern.fullmatch(name)
            if match is None or "median" not in figures:
                continue
            rates = [figures["median"], min(figures["rounds"]), max(figures["rounds"])]
            placed = [point(match, rate) for rate in rates]
            if placed[0] is not None:
                values = [value for _, value in placed]
                found.append((placed[0][0], values[0], min(values), max(values)))
        if found:
            points[engine] = sorted(found)
    return points


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the plots with at least two points of one engine; returns their paths."""
    plot: Any = import_module("matplotlib.pyplot")
    model = result["model"]
    pictures = [
        ("batch", points_over_streams(result), "streams", "tokens/s, all streams"),
        ("context", points_over_context(result), "tokens of context", "tokens/s, one stream"),
        ("first-token", points_of_first_token(result), "tokens of the prompt", "seconds to the first token"),
    ]
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, points, x_label, y_label in pictures:
        if not any(len(of_engine) > 1 for of_engine in points.values()):
            continue
        figure, axes = plot.subplots(figsize=(6, 4), layout="constrained")
        for engine, of_engine in points.items():
            x, median, lowest, highest = zip(*of_engine, strict=True)
            errors = [[m - low for m, low in zip(median, lowest, strict=True)]]
            errors.append([high - m for m, high in zip(median, highest, strict=True)])
            axes.errorbar(x, median, yerr=errors, marker="o", capsize=3, label=engine)
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label, title=f"{model}, {result['cpu']}")
        axes.set_xticks(ticks := sorted({x for of in points.values() for x, *_ in of}), [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
        path = folder / f"{model}-{name}.svg"
        figure.savefig(path)
        plot.close(figure)
        written.append(path)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws each file."""
    parser = argparse.ArgumentParser(prog="bench.plots", description="Draw comparisons.")
    parser.add_argument("results", nargs="+", type=Path, metavar="JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parsed = parser.parse_args(arguments)
    for path in parsed.results:
        for written in draw(json.loads(path.read_text(encoding="utf-8")), parsed.out):
            print(written)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
