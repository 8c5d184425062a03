"""The quality report: converts a checkpoint in each requested way and measures the results on one text.

By variant: perplexity and KL divergence against the unquantized checkpoint, HellaSwag, size, the times of conversion
and loading, resident memory, and the weights' error. Then the effect of the engine's rounding (activations, keys
and values). Returns JSON, which `bench.eval.page` formats. Conversions are kept in a work folder, so that a report that
was interrupted can resume.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.common import machine
from bench.eval.choice_files import hellaswag_tasks
from bench.eval.choices import BRANCHES, context_tokens, run_choices
from bench.eval.journal import Journal
from bench.eval.open_model import ModelOptions, OpenModel, open_model
from bench.eval.perplexity import kl_divergence
from bench.eval.text_windows import read_text, text_windows
from kernels import _native
from quant.codes.dequantize import dequantize
from quant.codes.matrix import QuantizedMatrix
from quant.conversion.convert import convert
from quant.errors import QuantError, TensorError
from quant.files.json_file import read_json_object, write_json
from quant.packed.packed_file import FILE_NAME, PackedFile, is_packed_model
from quant.packed.packed_matrix import TILE_OUTPUTS
from quant.sources.open_source import open_source

Options = Mapping[str, str | int | float]
Bar = Callable[[int, str, str], Any]

VARIANTS: Final[tuple[Options, ...]] = (
    *({"qtype": "sym_int4", "group_size": group, "method": "rtn"} for group in (32, 64, 128)),
    *({"qtype": "sym_int4", "extent": extent, "method": "rtn"} for extent in ("channel", "tensor")),
    *({"qtype": "asym_int4", "group_size": group, "method": "rtn"} for group in (32, 64)),
    {"qtype": "nf4", "group_size": 64, "method": "rtn"},
    {"qtype": "sym_int4", "group_size": 64, "method": "scale"},
    *({"qtype": qtype, "group_size": 64, "method": "quick"} for qtype in ("sym_int4", "lut4")),
    *({"qtype": "sym_int4", "group_size": group, "method": "gptq"} for group in (32, 64, 128)),
    {"qtype": "asym_int4", "group_size": 64, "method": "gptq"},
    *({"qtype": qtype, "group_size": 64, "method": "gptq"} for qtype in ("nf4", "lut4")),
    {"qtype": "sym_int4", "group_size": 64, "method": "signround"},
    *({"qtype": qtype, "group_size": 64, "method": "tuned"} for qtype in ("sym_int4", "lut4")),
    {"qtype": "sym_int4", "bits": 4.5, "method": "gptq"},
    {"qtype": "int8", "group_size": 64, "method": "rtn"},
)
"""The default variants: granularities, types and methods."""
_ROUNDINGS: Final[Mapping[str, tuple[str, str]]] = {
    "int8 activations": ("int8", "fp32"), "int8 keys and values": ("fp32", "int8"),
    "bf16 keys and values": ("fp32", "bf16"), "int16 keys and values": ("fp32", "int16"),
    "both, as served (int16)": ("int8", "int16"), "none": ("fp32", "fp32"),
}  # fmt: skip
_EXACT: Final = "none"
_BINS: Final = np.linspace(-1, 1, 82)
_ERROR_TILES: Final = 8  # of each matrix: 256 rows are enough


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What to measure. `work` is the folder of the conversions."""

    source: Path
    text: Path
    windows: int
    context: int
    work: Path
    hellaswag: Path | None = None
    tasks: int = 100
    threads: int | None = None
    variants: Sequence[Options] = VARIANTS


def make_report(options: ReportOptions, journal: Journal, bar: Bar) -> dict[str, Any]:
    """Makes the report. Raises QuantError, EvalError, OSError."""
    options.work.mkdir(parents=True, exist_ok=True)
    made: dict[str, tuple[Path, dict[str, Any]]] = {}
    refused: dict[str, str] = {}
    for variant in options.variants:
        try:
            made[label(variant)] = converted(options, variant)
        except TensorError as error:  # a group that does not divide this model's rows
            refused[label(variant)] = str(error)
    runtime = ModelOptions(options.threads)
    with ExitStack() as stack:
        base = stack.enter_context(open_model(options.source, runtime))
        models = {name: OpenModel(folder, folder, False, runtime) for name, (folder, _) in made.items()}
        quality, engine = _divergences(options, base, models, journal, bar)
        if options.hellaswag is not None:
            for name, each in {"unquantized": base, **models}.items():
                quality[name] |= _hellaswag(options, each, journal, name, bar)
    rows = []
    for name, (folder, conversion) in made.items():
        moved = journal.get(f"error/{name}", partial(weight_errors, options.source, folder))
        rows.append({"variant": name, **conversion, **quality[name], "weights_error": moved})
    return {
        "model": options.source.name,
        "text": options.text.name,
        "windows": options.windows,
        "context": options.context,
        "hellaswag_tasks": options.tasks if options.hellaswag else 0,
        **machine(),
        "tier": _native.default_tier(),
        "baseline": quality["unquantized"],
        "variants": rows,
        "refused": refused,
        "engine": engine,
    }


def label(variant: Options) -> str:
    """A variant's name in reports."""
    method = variant.get("method", "rtn")
    group = variant.get("extent") or f"g{variant.get('group_size', 64)}"
    return (
        f"{variant['qtype']} {variant['bits']}-bits {method}"
        if "bits" in variant
        else f"{variant['qtype']} {group} {method}"
    )


def converted(options: ReportOptions, variant: Options) -> tuple[Path, dict[str, Any]]:
    """The folder of a variant, and the facts of its conversion and loading; converted once."""
    folder = options.work / label(variant).replace(" ", "-")
    facts_file = folder.with_name(f"{folder.name}.json")
    if not (is_packed_model(folder) and facts_file.exists()):
        began, used = time.monotonic(), time.process_time()
        arguments: dict[str, Any] = dict(variant)
        report = convert(options.source, folder, force=folder.exists(), **arguments)
        facts: dict[str, Any] = {
            "conversion_s": time.monotonic() - began,
            "conversion_cpu_s": time.process_time() - used,
        }
        weights = sum(info.rows * info.cols for info in PackedFile(folder / FILE_NAME).matrices.values())
        facts |= {"size_bytes": report.size_bytes, "bits_per_weight": 8 * report.size_bytes / weights}
        facts |= {"linear_bits_per_weight": linear_bits(folder), "options": arguments}
        write_json(facts_file, facts | probe_load(folder))
    return folder, read_json_object(facts_file)


def linear_bits(folder: Path) -> float:
    """Bits a weight of the layers' matrices alone, scales included."""
    matrices = PackedFile(folder / FILE_NAME).matrices
    layers = [info for name, info in matrices.items() if name.endswith("_proj.weight")]
    return 8 * sum(info.size_bytes for info in layers) / sum(info.tiles * TILE_OUTPUTS * info.cols for info in layers)


def _divergences(
    options: ReportOptions, base: OpenModel, models: Mapping[str, OpenModel], journal: Journal, bar: Bar
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    text = read_text(options.text)
    windows = text_windows(base.tokenizer(), text, options.text, options.context, options.windows)
    kept = options.work / "kept-codes"
    if not is_packed_model(kept):
        convert(options.source, kept, qtype="auto", method="rtn", force=kept.exists())
    engines = {
        name: OpenModel(kept, kept, False, ModelOptions(options.threads, *types)) for name, types in _ROUNDINGS.items()
    }
    exact = engines.pop(_EXACT)
    base_result, results = _compared(base, {**models, "codes kept": exact}, windows, options, journal, bar)
    engine = {"codes kept": results.pop("codes kept")}
    engine |= _compared(exact, engines, windows, options, journal, bar)[1]
    return {"unquantized": base_result, **results}, engine


def _compared(
    base: OpenModel,
    models: Mapping[str, OpenModel],
    windows: Sequence[Sequence[int]],
    options: ReportOptions,
    journal: Journal,
    bar: Bar,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    with ExitStack() as stack:
        baseline = stack.enter_context(base.load(options.context))
        natives = {name: stack.enter_context(each.load(options.context)) for name, each in models.items()}
        tick = stack.enter_context(bar(len(windows), "kl", "window"))
        return kl_divergence(baseline, natives, windows, journal, tick, key=base.folder.name + "/kl")


def _hellaswag(options: ReportOptions, model: OpenModel, journal: Journal, name: str, bar: Bar) -> dict[str, Any]:
    assert options.hellaswag is not None
    tasks = hellaswag_tasks(options.hellaswag)[: options.tasks]
    tokenizer = model.tokenizer()
    width = context_tokens(tokenizer, tasks, model.context_tokens)
    with model.load(width, BRANCHES) as native, bar(len(tasks), name, "task") as tick:
        result = run_choices(native, tokenizer, tasks, journal, f"hellaswag/{name}", tick)
    return {"hellaswag": result["acc_norm"], "hellaswag_stderr": result["acc_norm_stderr"]}


def weight_errors(source: Path, folder: Path) -> dict[str, Any]:
    """The error of the layers' weights: relative root mean square, by matrix and in total, and a histogram.

    zeroed: the share of weights that are next to zero and were not: below a hundredth of their matrix' root mean
    square, since asym_int4's scales and minima, rounded to fp16 each, leave a rest there.

    The histogram's bins are in units of a matrix' own root mean square, from -1 to 1; of each matrix the first rows
    count.
    """
    checkpoint, packed = open_source(source), PackedFile(folder / FILE_NAME)
    counts, by_matrix, squares, zeroed = np.zeros(len(_BINS) - 1, np.int64), {}, np.zeros(2), np.zeros(2, np.int64)
    for name in (name for name in packed.matrices if name.endswith("_proj.weight")):
        ours = packed.dequantized_tiles(name, 0, _ERROR_TILES)
        values = checkpoint.tensors[name].read(0, len(ours))
        exact = dequantize(values) if isinstance(values, QuantizedMatrix) else values
        size = float(np.sqrt((exact**2).mean()))
        counts += np.histogram((ours - exact) / size, _BINS)[0]
        sums = float(((ours - exact) ** 2).sum()), float((exact**2).sum())
        by_matrix[name] = float(np.sqrt(sums[0] / sums[1]))
        squares += sums
        zeroed += np.array([np.count_nonzero((abs(ours) < size / 100) & (abs(exact) >= size / 100)), exact.size])
    return {
        "relative_rms": float(np.sqrt(squares[0] / squares[1])),
        "zeroed": float(zeroed[0] / zeroed[1]),
        "worst_matrix": max(by_matrix, key=lambda name: by_matrix[name]),
        "worst_relative_rms": max(by_matrix.values()),
        "histogram": counts.tolist(),
        "histogram_range": [-1, 1],
    }


_PROBE: Final = """
import json, sys, time
from pathlib import Path
from bench.common import process_resident_bytes
from quant.packed.native_model import NativeModel
began = time.monotonic()
model = NativeModel(Path(sys.argv[1]), context_tokens=512, threads=int(sys.argv[2]) or None)
model.prefill([1])
print(json.dumps({"load_s": time.monotonic() - began, "resident_bytes": process_resident_bytes()}))
"""


def probe_load(folder: Path, threads: int | None = None) -> dict[str, float]:
    """Measures in a fresh process: seconds until the first token, and the process' resident memory then.

    threads: compute threads; None: one for each CPU that the process may use. Raises QuantError if it fails.
    """
    command = [sys.executable, "-c", _PROBE, str(folder), str(threads or 0)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise QuantError(f"{folder}: could not be loaded: {finished.stderr.strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(finished.stdout)
    return result
