"""What a conversion takes: time, memory and disk, estimated before it begins.

Counts the operations of each method for a model's shape, and times a small piece of each kind of operation on this
machine. The counts follow `quant.calibration` and `quant.methods`: who changes what those compute changes them here.
Knows neither files nor codes.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from quant.calibration import sign_round
from quant.calibration.layers import KEPT_VALUES
from quant.calibration.tuning import BATCH_WINDOWS
from quant.codes.matrix import F32
from quant.methods.problem import MatrixProblem, Rounding, corrected
from quant.methods.registry import METHODS

_BASE_BYTES: Final = 160 << 20
"""The interpreter, its libraries and the pieces that are being written."""
_SAMPLE_ROWS: Final = 288
_SAMPLE_WIDTHS: Final = (128, 768)
_SIGN_ROUND_PASSES: Final = 60
"""Times that one step of signround reads or writes all values of a layer."""
_TUNING_PASSES: Final = 16
_SOFTMAX_PASSES: Final = 6
_MOST_LOGIT_TOKENS: Final = 256
_WEIGHED_KINDS: Final = 5
_WEIGHED_PRODUCTS: Final = 6 * 2 * 1024
"""Operations for each weight: six passes of SENSITIVITY_WINDOWS windows."""
_MINUTE_S, _HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a conversion's cost depends on."""

    layers: int
    hidden: int
    inner: int
    heads: int
    queries: int
    """Outputs of the query projection; `keys`: of the key and of the value projection."""
    keys: int
    vocabulary: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> "ModelShape":
        """From a completed config."""
        heads, head = int(config["num_attention_heads"]), int(config["head_dim"])
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            inner=int(config["intermediate_size"]),
            heads=heads,
            queries=heads * head,
            keys=int(config["num_key_value_heads"]) * head,
            vocabulary=int(config["vocab_size"]),
        )

    @property
    def stages(self) -> tuple[tuple[int, int, int], ...]:
        """Of a layer: the matrices that share an input, as outputs of all, inputs, how many matrices."""
        return (
            (self.queries + 2 * self.keys, self.hidden, 3),
            (self.hidden, self.queries, 1),
            (2 * self.inner, self.hidden, 2),
            (self.hidden, self.inner, 1),
        )

    @property
    def layer_weights(self) -> int:
        """Of a layer's matrices."""
        return sum(outputs * inputs for outputs, inputs, _ in self.stages)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: the method, the windows of text, and how much is read, rounded and written."""

    shape: ModelShape
    method: str
    window_tokens: int
    windows: int
    """Through which codes are chosen; 0 for rtn."""
    tuning_windows: int
    rounded_weights: int
    """Weights that are packed as they are written, and not before."""
    source_bytes: int
    output_bytes: int
    is_weighed: bool = False
    """Whether a budget of bits is spent first: each matrix of the layers is rounded in up to five ways."""

    @property
    def tokens(self) -> int:
        """Through which codes are chosen."""
        return self.windows * self.window_tokens

    @property
    def tuning_tokens(self) -> int:
        """On which scales are tuned."""
        return self.tuning_windows * self.window_tokens


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of this machine, in seconds for one operation on all cores that this process may use."""

    product_s: float
    """A floating-point operation of a matrix product."""
    value_s: float
    """Reading, changing or writing one fp32 value of a large array."""
    choice_s: tuple[float, float]
    """Choosing one weight's code: this, and this for each input of its matrix."""
    rounding_s: float
    """Reading, rounding and packing one weight, on one core."""
    hashed_byte_s: float
    threads: int


def measured(plan: Plan, rounding: Rounding | None, round_some: Callable[[], int]) -> Speeds:
    """Times small pieces of the plan's work, for about two seconds in all.

    rounding: of the layers' matrices; None where no codes are chosen. round_some: packs some rows of the checkpoint on
    one thread, and returns how many weights they have.
    """
    started = time.perf_counter()
    weights = round_some()
    threads = len(os.sched_getaffinity(0))
    rounding_s = (time.perf_counter() - started) / weights
    data = bytes(8 << 20)
    hashed_byte_s = _timed(lambda: hashlib.sha256(data)) / len(data)
    if rounding is None:
        return Speeds(0.0, 0.0, (0.0, 0.0), rounding_s, hashed_byte_s, threads)
    width = min(plan.shape.hidden, 2048)
    inner = min(plan.shape.inner, 4096)
    left, right = np.full((plan.window_tokens, width), 0.5, np.float32), np.full((width, inner), 0.5, np.float32)
    product_s = _timed(lambda: left @ right) / (2 * left.size * inner)
    values = np.full(1 << 22, 0.5, np.float32)
    value_s = _timed(lambda: np.exp(np.multiply(values, values))) / (2 * values.size)
    choice = (0.0, 0.0)
    base = "gptq" if plan.method == "tuned" else plan.method
    if base in METHODS and base != "rtn":
        few, many = (_choice_s(base, rounding, width, threads) for width in _SAMPLE_WIDTHS)
        slope = max(0.0, (many - few) / (_SAMPLE_WIDTHS[1] - _SAMPLE_WIDTHS[0]))
        choice = (max(0.0, few - slope * _SAMPLE_WIDTHS[0]), slope)
    return Speeds(product_s, value_s, choice, rounding_s, hashed_byte_s, threads)


def seconds(plan: Plan, speeds: Speeds, steps_done: int = 0) -> float:
    """The time of the plan. steps_done: layers, and then steps of tuning, that an earlier run has finished."""
    layers = plan.shape.layers
    total = plan.source_bytes * speeds.hashed_byte_s + plan.rounded_weights * speeds.rounding_s / speeds.threads
    if plan.is_weighed:
        weights = layers * plan.shape.layer_weights
        total += weights * (_WEIGHED_KINDS * speeds.rounding_s + _WEIGHED_PRODUCTS * speeds.product_s)
    if plan.method == "rtn":
        return total
    total += max(0, layers - steps_done) * _layer_s(plan, speeds)
    if plan.method == "tuned":
        steps = plan.tuning_windows // BATCH_WINDOWS
        done = max(0, steps_done - layers)
        forward = 2 * plan.shape.layer_weights * layers
        if steps_done <= layers:
            total += plan.tuning_tokens * (forward * speeds.product_s + _softmax_s(plan, speeds) * layers)
        total += max(0, steps - done) * _tuning_step_s(plan, speeds)
    return total


def memory_bytes(plan: Plan) -> int:
    """The most memory at a time, as counted in whole arrays."""
    shape = plan.shape
    if plan.method == "rtn":
        return _BASE_BYTES
    kept = plan.tokens * shape.inner if plan.tokens * shape.inner <= KEPT_VALUES else 0
    streams = 2 * plan.tokens * shape.hidden
    if plan.method == "signround":
        return _BASE_BYTES + 4 * (streams + 12 * shape.layer_weights)
    down = 4 * shape.inner * shape.hidden + 6 * shape.inner**2 + 6 * shape.hidden * shape.inner
    calibration = streams + 2 * kept + down
    tuning = 0
    if plan.method == "tuned":
        batch = BATCH_WINDOWS * plan.window_tokens
        tuning = (
            2 * plan.tuning_tokens * shape.hidden
            + 2 * shape.vocabulary * shape.hidden
            + 4 * _MOST_LOGIT_TOKENS * shape.vocabulary
            + shape.layers * (shape.layer_weights // 2 + batch * shape.hidden)
            + 4 * shape.layer_weights
            + 10 * batch * shape.inner
        )
    return _BASE_BYTES + 4 * max(calibration, tuning)


def disk_bytes(plan: Plan) -> int:
    """The most disk at a time: the result, and beside it what an interrupted conversion resumes from."""
    if plan.method == "rtn":
        return plan.output_bytes
    shape = plan.shape
    streams = 2 * 2 * 4 * plan.tokens * shape.hidden
    tuning = 0
    if plan.method == "tuned":
        packed = shape.layers * shape.layer_weights * 17 // 32
        states = 2 * 3 * 4 * shape.layers * shape.layer_weights // 64
        tuning = packed + states + 4 * plan.tuning_tokens * shape.hidden
    return 2 * plan.output_bytes + streams + tuning


def available_memory_bytes(info: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """What this machine has left, swap included, or the container's limit if that is less."""
    lines = dict(line.split(":", 1) for line in info.read_text().splitlines())
    free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in lines)
    try:
        return min(free, int(limit.read_text()))
    except (OSError, ValueError):  # there is no limit
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
    """A size in words."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.0f} MB"


def _layer_s(plan: Plan, speeds: Speeds) -> float:
    """One layer: both streams run through it, moments of every input, and the codes."""
    shape, tokens = plan.shape, plan.tokens
    if plan.method == "signround":
        batch = sign_round.BATCH_WINDOWS * plan.window_tokens
        step = 8 * batch * shape.layer_weights * speeds.product_s
        step += _SIGN_ROUND_PASSES * shape.layer_weights * speeds.value_s + 4 * batch * _softmax_s(plan, speeds)
        return sign_round.STEPS * step + 4 * tokens * shape.layer_weights * speeds.product_s
    gates = 2 * shape.hidden * shape.inner if tokens * shape.inner > KEPT_VALUES else 0
    products = 4 * tokens * (shape.layer_weights + gates)
    choices = 0.0
    for outputs, inputs, matrices in shape.stages:
        products += 4 * tokens * inputs**2 + 2 * outputs * inputs**2 + matrices * inputs**3
        choices += outputs * inputs * (speeds.choice_s[0] + inputs * speeds.choice_s[1])
    products += 2 * tokens * shape.hidden * (shape.queries + shape.inner)  # what the residual stream misses
    return products * speeds.product_s + choices + 2 * tokens * _softmax_s(plan, speeds)


def _softmax_s(plan: Plan, speeds: Speeds) -> float:
    """For one token in one layer: what is no matrix product."""
    scores = plan.shape.heads * plan.window_tokens / 2
    return (_SOFTMAX_PASSES * (scores + plan.shape.inner) + 12 * plan.shape.hidden) * speeds.value_s


def _tuning_step_s(plan: Plan, speeds: Speeds) -> float:
    shape, tokens = plan.shape, BATCH_WINDOWS * plan.window_tokens
    weights = shape.layers * shape.layer_weights
    products = 8 * tokens * weights + 6 * tokens * shape.vocabulary * shape.hidden
    values = _TUNING_PASSES * weights + 2 * _SOFTMAX_PASSES * tokens * shape.vocabulary
    return products * speeds.product_s + values * speeds.value_s + 6 * tokens * shape.layers * _softmax_s(plan, speeds)


def _choice_s(method: str, rounding: Rounding, width: int, threads: int) -> float:
    """Seconds for one weight of a matrix with so many inputs."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((2 * width, width), np.float32)
    weights: F32 = generator.standard_normal((_SAMPLE_ROWS * threads, width), np.float32)
    moments: F32 = inputs.T @ inputs / np.float32(len(inputs))
    missing = np.zeros_like(weights)
    problem = MatrixProblem("sample", weights, rounding, moments)

    def choose() -> None:
        corrected(weights, moments, missing)
        METHODS[method](problem)

    return _timed(choose) / weights.size


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the faster of two runs: other programs disturb it least."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
