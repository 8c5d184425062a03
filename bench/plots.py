"""Draws JSON of `redoubt bench compare` or `memory`: `python -m bench.plots X.json --out FOLDER`. Does not measure.

Of a comparison up to three SVG files, depending on the works: tokens a second over streams, and over context
(logarithmic axes), and the time of the first token over the prompt's length (the prefill's seconds). Of saved pages the
time of the first token over the prompt's length, and over the disk's rate. Points are medians, bars the lowest and
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
"""Points by engine: x, and the median, lowest and highest of the rounds."""


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


def points_of_memory(result: Mapping[str, Any]) -> Points:
    """Seconds to the first token by where the prompt's pages are, and llama.cpp's."""
    names = {
        "cold": "computed",
        "hot": "in memory",
        "restored": "saved, in the page cache",
        "restored_from_disk": "saved, on the disk",
    }
    points: Points = {}
    for tokens, figures in result["first_token_ms"].items():
        for kind, name in names.items():
            low, high = figures["ranges"][kind]
            points.setdefault(name, []).append((int(tokens), figures[kind] / 1e3, low / 1e3, high / 1e3))
            if "llama_cpp" in figures and kind in ("cold", "restored"):
                theirs = figures["llama_cpp"][kind] / 1e3
                points.setdefault(f"llama.cpp, {name}", []).append((int(tokens), theirs, theirs, theirs))
    return points


def points_of_disks(result: Mapping[str, Any], tokens: str) -> Points:
    """Seconds to the first token of so long a prompt over the disk's rate in MB/s; the unlimited one is left out."""
    points: Points = {}
    for disk in result["disks"]:
        if disk["bytes_per_s"] is not None:
            figures = {str(length): of_length for length, of_length in disk["first_token_ms"].items()}[tokens]
            for kind in ("computed", "always", "auto"):
                seconds = figures[kind] / 1e3
                points.setdefault(kind, []).append((disk["bytes_per_s"] // 1_000_000, seconds, seconds, seconds))
    return {name: sorted(of_kind) for name, of_kind in points.items()}


def draw(result: Mapping[str, Any], folder: Path, only: Sequence[str] | None = None) -> list[Path]:
    """Writes the plots with at least two points of one engine; returns their paths.

    only: the files that are wanted, by name; None: all.
    """
    seconds = "seconds to the first token"
    if "disks" in result:
        lengths = [str(length) for length in result["disks"][0]["first_token_ms"]]
        pictures = [("memory", points_of_memory(result), "tokens of the prompt", seconds)] + [
            (f"memory-disks-{length}", points_of_disks(result, length), f"MB/s of the disk, {length} tokens", seconds)
            for length in lengths
        ]
    else:
        pictures = [
            ("batch", points_over_streams(result), "streams", "tokens/s, all streams"),
            ("context", points_over_context(result), "tokens of context", "tokens/s, one stream"),
            ("first-token", points_of_first_token(result), "tokens of the prompt", seconds),
        ]
    plot: Any = import_module("matplotlib.pyplot")
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, points, x_label, y_label in pictures:
        path = folder / f"{result['model']}-{name}.svg"
        if any(len(of_engine) > 1 for of_engine in points.values()) and (only is None or path.name in only):
            _draw_points(
                plot, points, path, xlabel=x_label, ylabel=y_label, title=f"{result['model']}, {result['cpu']}"
            )
            written.append(path)
    return written


def _draw_points(plot: Any, points: Points, path: Path, **labels: str) -> None:
    plot.rcParams["svg.hashsalt"] = path.stem  # equal figures, equal files
    figure, axes = plot.subplots(figsize=(6, 4), layout="constrained")
    for engine, of_engine in points.items():
        x, median, lowest, highest = zip(*of_engine, strict=True)
        errors = [[m - low for m, low in zip(median, lowest, strict=True)]]
        errors.append([high - m for m, high in zip(median, highest, strict=True)])
        axes.errorbar(x, median, yerr=errors, marker="o", capsize=3, label=engine)
    axes.set(xscale="log", yscale="log", **labels)
    axes.set_xticks(ticks := sorted({x for of in points.values() for x, *_ in of}), [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.plots", description="Draw comparisons and saved pages.")
    parser.add_argument("results", nargs="+", type=Path, metavar="JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parsed = parser.parse_args(arguments)
    for path in parsed.results:
        for written in draw(json.loads(path.read_text(encoding="utf-8")), parsed.out):
            print(written)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
