"""Formats a quality report's JSON: Markdown tables between two marks of a file, and plots. Does not measure.

Plots need matplotlib (the `bench` extra).
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

BEGIN: Final = "<!-- report begins -->"
END: Final = "<!-- report ends -->"


def tables(report: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    base = report["baseline"]
    hellaswag = "hellaswag" in base
    lines = [
        f"`{report['model']}`, {report['text']}, {report['windows']} windows of {report['context']} tokens"
        + (f", {report['hellaswag_tasks']} HellaSwag tasks" if hellaswag else "")
        + f"; {report['cpu']}, {report['tier']}, commit {report['commit']}.",
        f"Unquantized: perplexity {base['perplexity']:.3f} ± {base['perplexity_stderr']:.2f}"
        + (f", HellaSwag {base['hellaswag']:.1%} ± {base['hellaswag_stderr']:.1%}." if hellaswag else "."),
        "",
        "| conversion | bits (layers) | perplexity | mean KL | 99 % KL | same top token |"
        + (" HellaSwag |" if hellaswag else "")
        + " weights moved | size | convert | load | resident |",
        "| --- | ---: | ---: | ---: | ---: | ---: |"
        + (" ---: |" if hellaswag else "")
        + " ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in sorted(report["variants"], key=lambda row: (row["linear_bits_per_weight"], row["kl"]["mean"])):
        cells = [
            row["variant"],
            f"{row['linear_bits_per_weight']:.2f}",
            f"{row['perplexity_increase']:+.1%}",
            f"{row['kl']['mean']:.4f}",
            f"{row['kl']['p99']:.3f}",
            f"{row['top1_agreement']:.1%}",
            *([f"{row['hellaswag']:.1%}"] if hellaswag else []),
            f"{row['weights_error']['relative_rms']:.2%}",
            f"{row['size_bytes'] / 1e6:.0f} MB",
            "not timed" if row["conversion_s"] is None else f"{row['conversion_s']:.1f} s",
            f"{row['load_s']:.2f} s",
            f"{row['resident_bytes'] / 1e6:.0f} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The engine's own part. First the checkpoint as `--qtype auto` imports it, against the checkpoint itself (fp32",
    ]
    lines += ["activations, keys and values); then what each rounding of the engine adds to that:", ""]
    lines += ["| rounded | perplexity | mean KL | same top token |", "| --- | ---: | ---: | ---: |"]
    for name, row in report["engine"].items():
        increase, kl = f"{row['perplexity_increase']:+.3%}", f"{row['kl']['mean']:.6f}"
        lines.append(f"| {name} | {increase} | {kl} | {row['top1_agreement']:.2%} |")
    return "\n".join(lines)


def with_report(page: str, report: Mapping[str, Any], plots: str) -> str:
    """The page with the text between its marks replaced. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables(report)}\n\n{plots}\n\n{END}{after}"


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the plots: divergence and perplexity over bits, and histograms of the weights' errors; returns paths."""
    plot: Any = import_module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    figures = (("kl", "mean KL divergence, nats a token"), ("perplexity", "increase of perplexity"))
    for kind, label in figures:
        figure, axes = plot.subplots(figsize=(7, 4.5))
        for row in report["variants"]:
            y = row["kl"]["mean"] if kind == "kl" else row["perplexity_increase"]
            axes.scatter(row["linear_bits_per_weight"], y, s=18)
            axes.annotate(row["variant"], (row["linear_bits_per_weight"], y), fontsize=6, xytext=(3, 2),
                          textcoords="offset points")  # fmt: skip
        axes.set_xlabel("bits a weight of the layers")
        axes.set_ylabel(label)
        if kind == "kl":
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        paths.append(_saved(plot, figure, folder / f"quality-{kind}-over-bits.svg"))
    figure, axes = plot.subplots(figsize=(7, 4.5))
    for row in report["variants"]:
        error = row["weights_error"]
        counts = np.array(error["histogram"], np.float64)
        edges = np.linspace(error["histogram_range"][0], error["histogram_range"][1], len(counts) + 1)
        density = counts / counts.sum() / (edges[1] - edges[0])
        axes.step((edges[1:] + edges[:-1]) / 2, density, where="mid", linewidth=0.8, label=row["variant"])
    axes.set_yscale("log")
    axes.set_xlabel("error of a weight, in root mean squares of its matrix")
    axes.set_ylabel("density")
    axes.legend(fontsize=6)
    axes.grid(alpha=0.3)
    paths.append(_saved(plot, figure, folder / "quality-weight-errors.svg"))
    return paths


def _saved(plot: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)
    return path
