"""Forecasts what a conversion of this checkpoint takes, checks it against this machine, and words it for the user.

Does not know how the numbers are computed (`conversion.estimate`), nor how a conversion is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quant.codes.matrix import IntegerType
from quant.conversion.calibrated import FOUR_BIT
from quant.conversion.estimate import (
    Plan,
    Speeds,
    available_memory_bytes,
    disk_bytes,
    duration,
    gigabytes,
    measured,
    memory_bytes,
    seconds,
)
from quant.conversion.model_shape import ModelShape
from quant.conversion.pieces import PieceMaker
from quant.conversion.tuned import TUNED, divided
from quant.errors import ResourceError
from quant.families.names import EngineTensor
from quant.files.free_space import SPARE_BYTES, free_bytes
from quant.methods.problem import Rounding
from quant.packed.packed_matrix import TILE_OUTPUTS, MatrixInfo
from quant.sources.source import Source

_SAMPLE_VALUES = 1 << 20


def plan_of(
    checkpoint: Source,
    expected: Mapping[str, EngineTensor],
    infos: Mapping[str, MatrixInfo],
    method: str,
    ids: NDArray[np.int32] | None,
    bits: float | None,
) -> Plan:
    """Plans the work. ids: calibration windows [windows, tokens]; bits: the budget of bits per weight."""
    windows = tuning = tokens = 0
    if method != "rtn" and ids is not None:
        tokens = ids.shape[1]
        windows, tuning = (len(part) for part in divided(ids)) if method == TUNED else (len(ids), 0)
    linear = [info for name, info in infos.items() if expected[name].role == "linear"]
    packed = sum(info.size_bytes for info in infos.values())
    vectors = sum(4 * expected[name].shape[0] for name in expected if name not in infos)
    if bits is not None:
        weights = sum(info.rows * info.cols for info in linear)
        packed += max(0, int(bits * weights / 8) - sum(info.size_bytes for info in linear))
    # Matrices of the layers are packed when their codes are chosen.
    packed_late = [info for name, info in infos.items() if method == "rtn" or expected[name].role != "linear"]
    return Plan(
        shape=ModelShape.of(checkpoint.decoder),
        method=method,
        window_tokens=tokens,
        windows=windows,
        tuning_windows=tuning,
        rounded_weights=sum(info.rows * info.cols for info in packed_late),
        source_bytes=sum(path.stat().st_size for path in checkpoint.files),
        output_bytes=packed + vectors,
        is_weighed=bits is not None,
    )


def check_resources(plan: Plan, out: Path, resumed_bytes: int) -> None:
    """Raises ResourceError if this machine lacks the disk or the memory.

    resumed_bytes: data of an interrupted conversion to `out` that is on the disk already.
    """
    least = gigabytes(plan.output_bytes + SPARE_BYTES)
    cheaper = "" if plan.method == "rtn" else f"; --method rtn needs {least}, and is worse"
    needed, free = disk_bytes(plan) + SPARE_BYTES - resumed_bytes, free_bytes(out)
    if needed > free:
        raise ResourceError(f"{out}: needs {gigabytes(needed)} of disk, {gigabytes(free)} are free{cheaper}")
    needed, free = memory_bytes(plan), available_memory_bytes()
    if needed > free:
        raise ResourceError(
            f"method {plan.method} needs about {gigabytes(needed)} of memory for this model, {gigabytes(free)} are"
            " free; --method rtn needs 0.2 GB, and is worse"
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """A plan, and this machine's speeds."""

    plan: Plan
    speeds: Speeds

    @staticmethod
    def measured(plan: Plan, checkpoint: Source, infos: Mapping[str, MatrixInfo], maker: PieceMaker) -> "Forecast":
        """Packs some rows and times the rest of the plan's work. Raises TensorError for rows that can't be packed."""
        name, info = max(infos.items(), key=lambda item: (item[1].type in FOUR_BIT, item[1].rows * item[1].cols))
        rows = min(info.rows, max(1, _SAMPLE_VALUES // (info.cols * TILE_OUTPUTS)) * TILE_OUTPUTS)

        def round_some() -> int:
            maker.piece(name, info, 0, rows)
            return rows * info.cols

        rounding = Rounding(cast("IntegerType", info.type), info.group, info.table) if plan.windows else None
        return Forecast(plan, measured(plan, rounding, round_some))

    def beginning(self) -> str:
        """The message before the work begins."""
        disk, kept = disk_bytes(self.plan), self.plan.output_bytes
        space = f"{gigabytes(disk)} of disk" + (f" ({gigabytes(kept)} at the end)" if disk > kept else "")
        resume = "the same command begins again" if self.plan.method == "rtn" else "the same command goes on from there"
        return (
            f"Converting by {self.plan.method} takes {duration(seconds(self.plan, self.speeds))},"
            f" {gigabytes(memory_bytes(self.plan))} of memory and {space}. Ctrl-C stops it; {resume}."
        )

    def resuming(self, steps_done: int) -> str:
        """The message before an interrupted conversion resumes. steps_done: layers, then steps of tuning."""
        left = duration(seconds(self.plan, self.speeds, steps_done))
        return f"Going on after {how_far(steps_done, self.plan.shape.layers)}: {left} more."


def how_far(steps_done: int, layers: int) -> str:
    """Words a calibration's progress. steps_done: layers, then steps of tuning."""
    if steps_done == 0:
        return "no layer yet"
    if steps_done <= layers:
        return f"layer {steps_done} of {layers}"
    return f"all {layers} layers and {steps_done - layers} steps of the tuning"
