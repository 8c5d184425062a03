"""Estimates a conversion's time, memory and disk space before it begins.

Counts the operations of each method for a model's shape, and times a small piece of each kind of operation on this
machine. The counts follow `quant.calibration` and `quant.methods`, and must be changed with them. Knows neither files
nor codes.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import numpy as np

from quant.calibration import sign_round
from quant.calibration.layer_engine import STEP_TOKENS as LAYER_STEP_TOKENS
from quant.calibration.layer_engine import LayerEngine
from quant.calibration.layer_file import LayerFile
from quant.calibration.sums import block_size
from quant.calibration.tuning import BATCH_WINDOWS
from quant.codes.matrix import F32, U8, WeightType
from quant.conversion.model_shape import ModelShape, StageShape, weights_of
from quant.families.description import Attention, Decoder, Layer, Mlp, Rope
from quant.families.names import engine_tensors
from quant.methods.problem import MatrixProblem, Rounding, corrected
from quant.methods.registry import METHODS
from quant.packed.packed_matrix import MatrixInfo

_BASE_BYTES: Final = 160 << 20
"""Memory of the interpreter, its libraries and the pieces that are being written."""
_SAMPLE_ROWS: Final = 288
_SAMPLE_WIDTHS: Final = (128, 768)
_QUICK_SAMPLE: Final = (2048, 1024)
"""Rows and inputs. Its threads take what passes for many weights' time: of fewer rows it would measure only them."""
_SAMPLE_HIDDEN: Final = 768
_SAMPLE_TOKENS: Final = 1024
_ACTIVATIONS_KEPT: Final = 5
"""The unquantized layer's activations that are kept for all tokens, each as wide as the residual stream."""
_NEAR_COPIES: Final = 2
"""Of a layer in int8: the packed one, and the engine's."""
_COPIED_ROWS: Final = 16
"""How often a value of the residual stream is copied or subtracted in a layer."""
_SIGN_ROUND_PASSES: Final = 60
"""How often one step of signround reads or writes all values of a layer."""
_TUNING_PASSES: Final = 16
_SOFTMAX_PASSES: Final = 6
_MOST_LOGIT_TOKENS: Final = 256
_WEIGHED_KINDS: Final = 5
_WEIGHED_PRODUCTS: Final = 6 * 2 * 1024
"""Operations per weight: six passes of SENSITIVITY_WINDOWS windows."""
_MINUTE_S, _HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned work: the method, the windows of text, and how much is read, rounded and written."""

    shape: ModelShape
    method: str
    window_tokens: int
    windows: int
    """Windows with which codes are chosen; 0 for rtn."""
    tuning_windows: int
    rounded_weights: int
    """Weights that are packed only as they are written."""
    source_bytes: int
    output_bytes: int
    is_weighed: bool = False
    """Whether a bit budget is allocated first, for which each matrix of the layers is rounded in up to five ways."""

    @property
    def tokens(self) -> int:
        """Tokens with which codes are chosen."""
        return self.windows * self.window_tokens

    @property
    def tuning_tokens(self) -> int:
        """Tokens on which scales are tuned."""
        return self.tuning_windows * self.window_tokens


@dataclass(frozen=True, slots=True)
class Speeds:
    """This machine's seconds per operation, on all cores that this process may use."""

    product_s: float
    """One floating-point operation of a matrix product, in NumPy."""
    exact_s: float
    """The same in the engine, in fp32; quantized_s: with int8 activations."""
    quantized_s: float
    value_s: float
    """Reading, changing or writing one fp32 value of a large array."""
    choice_s: tuple[float, float]
    """Choosing one weight's code: a constant, and seconds per input of its matrix."""
    rounding_s: float
    """Reading, rounding and packing one weight, on one core."""
    hashed_byte_s: float
    threads: int


def measured(plan: Plan, rounding: Rounding | None, round_some: Callable[[], int]) -> Speeds:
    """Times small pieces of the plan's work, for about two seconds in all.

    rounding: that of the layers' matrices; None where no codes are chosen. round_some: packs some rows of the
    checkpoint on one thread, and returns how many weights they have.
    """
    weights = round_some()
    threads = len(os.sched_getaffinity(0))
    rounding_s = _timed(round_some) / weights
    data = bytes(8 << 20)
    hashed_byte_s = _timed(lambda: hashlib.sha256(data)) / len(data)
    if rounding is None:
        return Speeds(0.0, 0.0, 0.0, 0.0, (0.0, 0.0), rounding_s, hashed_byte_s, threads)
    width = min(plan.shape.hidden, 2048)
    inner = min(plan.shape.inner, 4096)
    left, right = np.full((plan.window_tokens, width), 0.5, np.float32), np.full((width, inner), 0.5, np.float32)
    product_s = _timed(lambda: left @ right) / (2 * left.size * inner)
    values = np.full(1 << 22, 0.5, np.float32)
    value_s = _timed(lambda: np.exp(np.multiply(values, values))) / (2 * values.size)
    choice = (0.0, 0.0)
    base = "gptq" if plan.method == "tuned" else plan.method
    if base == "quick":
        choice = (_choice_s(base, rounding, *_QUICK_SAMPLE), 0.0)
    elif base in METHODS and base != "rtn":
        few, many = (_choice_s(base, rounding, _SAMPLE_ROWS * threads, width) for width in _SAMPLE_WIDTHS)
        slope = max(0.0, (many - few) / (_SAMPLE_WIDTHS[1] - _SAMPLE_WIDTHS[0]))
        choice = (max(0.0, few - slope * _SAMPLE_WIDTHS[0]), slope)
    return Speeds(product_s, *_engine_s(plan), value_s, choice, rounding_s, hashed_byte_s, threads)


def seconds(plan: Plan, speeds: Speeds, steps_done: int = 0) -> float:
    """Time of the plan. steps_done: layers, and then steps of tuning, that an earlier run has finished."""
    shape, layers = plan.shape, plan.shape.layers
    total = plan.source_bytes * speeds.hashed_byte_s + plan.rounded_weights * speeds.rounding_s / speeds.threads
    if plan.is_weighed:
        total += shape.weights * (_WEIGHED_KINDS * speeds.rounding_s + _WEIGHED_PRODUCTS * speeds.product_s)
    if plan.method == "rtn":
        return total
    layer_s = {"signround": _sign_round_layer_s, "quick": _quick_layer_s}.get(plan.method, _layer_s)
    total += sum(layer_s(plan, speeds, stages) for stages in shape.stages[steps_done:])
    if plan.method == "tuned":
        steps = plan.tuning_windows // BATCH_WINDOWS
        done = max(0, steps_done - layers)
        if steps_done <= layers:
            answers = 2 * shape.weights * speeds.product_s + _softmax_s(plan, speeds) * layers
            total += plan.tuning_tokens * answers
        total += max(0, steps - done) * _tuning_step_s(plan, speeds)
    return total


def memory_bytes(plan: Plan) -> int:
    """Peak memory, counted in whole arrays."""
    shape = plan.shape
    if plan.method == "rtn":
        return _BASE_BYTES
    streams = 2 * plan.tokens * shape.hidden
    layer_weights = weights_of(shape.largest_layer)
    if plan.method == "signround":
        return _BASE_BYTES + 4 * (streams + 12 * layer_weights)
    if plan.method == "quick":
        layer = max(_quick_values(plan, stage) for stage in shape.largest_layer) + _NEAR_COPIES * layer_weights // 4
        return _BASE_BYTES + 4 * (streams // 2 + LAYER_STEP_TOKENS * (4 * shape.hidden + shape.inner) + layer)
    calibration = streams + _ACTIVATIONS_KEPT * plan.tokens * shape.hidden
    calibration += max(2 * layer_weights, *(_stage_values(plan, stage) for stage in shape.largest_layer))
    tuning = 0
    if plan.method == "tuned":
        batch = BATCH_WINDOWS * plan.window_tokens
        tuning = (
            2 * plan.tuning_tokens * shape.hidden
            + 2 * shape.vocabulary * shape.hidden
            + 4 * _MOST_LOGIT_TOKENS * shape.vocabulary
            + shape.weights // 2
            + shape.layers * batch * shape.hidden
            + 4 * layer_weights
            + 10 * batch * shape.inner
        )
    return _BASE_BYTES + 4 * max(calibration, tuning)


def disk_bytes(plan: Plan) -> int:
    """Peak disk space: the result, and the data from which an interrupted conversion resumes."""
    if plan.method == "rtn":
        return plan.output_bytes
    shape = plan.shape
    streams = (1 if plan.method == "quick" else 2) * 2 * 4 * plan.tokens * shape.hidden
    tuning = 0
    if plan.method == "tuned":
        packed = shape.weights * 17 // 32
        states = 2 * 3 * 4 * shape.weights // 64
        tuning = packed + states + 4 * plan.tuning_tokens * shape.hidden
    return 2 * plan.output_bytes + streams + tuning


def available_memory_bytes(info: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """This machine's available memory, swap included, or the container's limit if that is less."""
    lines = dict(line.split(":", 1) for line in info.read_text().splitlines())
    free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in lines)
    try:
        return min(free, int(limit.read_text()))
    except (OSError, ValueError):  # no limit
        return free


def duration(estimate_s: float) -> str:
    """An estimate in words, as a range: it may be off by a third."""
    low, high = 0.75 * estimate_s, 1.35 * estimate_s
    if high < 20:
        return "a few seconds"
    if high < 1.5 * _MINUTE_S:
        return f"about {max(1, round(low / 10)) * 10} to {round(high / 10 + 0.5) * 10} seconds"
    unit_s, unit = (_MINUTE_S, "minutes") if high < 1.5 * _HOUR_S else (_HOUR_S, "hours")
    few, many = max(1, round(low / unit_s)), round(high / unit_s)
    return f"about {few} to {max(many, few + 1)} {unit}"


def gigabytes(size_bytes: int) -> str:
    """Formats a size in gigabytes."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.0f} MB"


def _layer_s(plan: Plan, speeds: Speeds, stages: tuple[StageShape, ...]) -> float:
    """Time of one layer: both streams run through it, moments of every input, and the codes."""
    tokens = plan.tokens
    total = _COPIED_ROWS * tokens * plan.shape.hidden * speeds.value_s
    for stage in stages:
        outputs, inputs = stage.outputs, stage.inputs
        total += 2 * tokens * stage.used_weights * (speeds.exact_s + stage.runs * speeds.quantized_s)
        # NumPy computes one half of a symmetric product.
        products = tokens * stage.per_token * inputs**2
        if stage.experts > 1:
            products *= 2
        elif stage.corrected:
            products += 2 * tokens * inputs * min(inputs, outputs) + 6 * outputs * inputs**2
        products += stage.matrices * stage.experts * inputs**3
        total += products * speeds.product_s
        total += stage.weights * (speeds.choice_s[0] + inputs * speeds.choice_s[1])
    return total


def _quick_layer_s(plan: Plan, speeds: Speeds, stages: tuple[StageShape, ...]) -> float:
    """One layer: rounded to int8, one stream runs through it once, moments of blocks of inputs, and the codes."""
    tokens = plan.tokens
    total = _COPIED_ROWS * tokens * plan.shape.hidden * speeds.value_s
    for stage in stages:
        total += (
            stage.weights * speeds.rounding_s / speeds.threads + 2 * tokens * stage.used_weights * speeds.quantized_s
        )
        block = block_size(stage.inputs)
        products = tokens * stage.per_token * stage.inputs * block * (2 if stage.experts > 1 else 1)
        products += stage.matrices * stage.experts * stage.inputs * block**2
        total += products * speeds.product_s
        total += stage.weights * (speeds.choice_s[0] + block * speeds.choice_s[1])
    return total


def _stage_values(plan: Plan, stage: StageShape) -> int:
    """Number of values held while a stage's codes are chosen."""
    held = 6 * stage.inputs**2 + 6 * stage.outputs * stage.inputs
    return held if stage.experts == 1 else held + 2 * plan.tokens * stage.per_token * stage.inputs


def _quick_values(plan: Plan, stage: StageShape) -> int:
    """The same for the quick way: of one matrix, all experts' together, and of their inputs."""
    held = 2 * stage.inputs * block_size(stage.inputs) + 3 * stage.weights // stage.matrices
    return held if stage.experts == 1 else held + 2 * plan.tokens * stage.per_token * stage.inputs


def _sign_round_layer_s(plan: Plan, speeds: Speeds, stages: tuple[StageShape, ...]) -> float:
    weights = weights_of(stages)
    batch = sign_round.BATCH_WINDOWS * plan.window_tokens
    step = 8 * batch * weights * speeds.product_s
    step += _SIGN_ROUND_PASSES * weights * speeds.value_s + 4 * batch * _softmax_s(plan, speeds)
    return sign_round.STEPS * step + 4 * plan.tokens * weights * speeds.product_s


def _softmax_s(plan: Plan, speeds: Speeds) -> float:
    """Time for one token in one layer of everything but matrix products."""
    scores = plan.shape.heads * plan.window_tokens / 2
    return (_SOFTMAX_PASSES * (scores + plan.shape.inner) + 12 * plan.shape.hidden) * speeds.value_s


def _tuning_step_s(plan: Plan, speeds: Speeds) -> float:
    shape, tokens = plan.shape, BATCH_WINDOWS * plan.window_tokens
    weights = shape.weights
    products = 8 * tokens * weights + 6 * tokens * shape.vocabulary * shape.hidden
    values = _TUNING_PASSES * weights + 2 * _SOFTMAX_PASSES * tokens * shape.vocabulary
    return products * speeds.product_s + values * speeds.value_s + 6 * tokens * shape.layers * _softmax_s(plan, speeds)


def _choice_s(method: str, rounding: Rounding, rows: int, width: int) -> float:
    """Seconds per weight of a matrix with so many rows and `width` inputs."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((2 * width, width), np.float32)
    weights: F32 = generator.standard_normal((rows, width), np.float32)
    moments: F32 = inputs.T @ inputs / np.float32(len(inputs))
    missing = np.zeros_like(weights)
    problem = MatrixProblem("sample", weights, rounding, moments)

    def choose() -> None:
        if method != "quick":
            corrected(weights, moments, missing)
        METHODS[method](problem)

    return _timed(choose) / weights.size


def _engine_s(plan: Plan) -> tuple[float, float]:
    """Seconds per operation of a product with fp32 weights and activations, and with int4 and int8 ones."""
    tokens, hidden = plan.window_tokens, _SAMPLE_HIDDEN
    decoder = Decoder(
        1, hidden, tokens, hidden // 64, hidden // 64, 64, (Layer(Attention(0.125), Mlp(2 * hidden)),), (0,),
        ropes=(Rope(64, (1.0,) * 32),), tied_head=True, final_norm=False,
    )  # fmt: skip
    times = []
    tensors = {name: each for name, each in engine_tensors(decoder).items() if each.role not in ("embedding", "table")}
    weights = sum(each.shape[0] * each.shape[1] for each in tensors.values() if each.role == "linear")
    windows = max(1, _SAMPLE_TOKENS // tokens)
    hidden_states = np.random.default_rng(0).standard_normal((windows, tokens, hidden), np.float32)
    for kind, group in (("fp32", 0), ("sym_int4", 64)):
        matrices: dict[str, tuple[MatrixInfo, U8]] = {}
        for name, each in tensors.items():
            if each.role == "linear":
                rows, cols = each.shape
                info = MatrixInfo(cast("WeightType", kind), rows, cols, group, None)
                matrices[name] = (info, np.zeros((info.tiles, info.tile_bytes), np.uint8))
        vectors = {name: np.ones(each.shape[0], np.float32) for name, each in tensors.items() if each.role == "vector"}
        with LayerEngine(LayerFile.of(decoder, matrices, vectors), tokens, exact=not group) as engine:
            run = partial(_run, engine, hidden_states)
            times.append(_timed(run) / (2 * weights * windows * tokens))
    return times[0], times[1]


def _run(engine: LayerEngine, hidden: F32) -> None:
    for _ in engine.activations(hidden, ("hidden",)):
        pass


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the faster of two runs, which other programs disturb least."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
