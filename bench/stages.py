"""Where a native step's time goes: by stage and by type, of a model's profile.

A stage is a part of the step with a barrier at its end: `qkv` has the layer's first norm and the three projections,
`gate_up` the second norm, both projections and the activation. Times are the first thread's. Of the types, `products`
are matrix products; `attention` is the stages attention and states without those; `barriers` is waiting for other
threads; `rest` is what is left: norms, rounding and quantizing, rotation, activations, the residual stream, embedding,
sampling. Knows no engine.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

Profile = tuple[int, Mapping[str, tuple[float, float, float]]]
"""Steps, and each stage's seconds: all, in products, at barriers; as `_native.Model.profile` has it for each kind."""
TYPES: Final = ("products", "attention", "rest", "barriers")
_ATTENTION: Final = ("attention", "states")


def step_times(rounds: Sequence[Profile]) -> dict[str, object]:
    """A step's seconds, medians over rounds: in all, by stage, and by type. Each round has at least one step."""
    by_stage = {
        stage: [median(one[stage][part] / steps for steps, one in rounds) for part in range(3)]
        for stage, parts in rounds[0][1].items()
        if parts[0]
    }
    types = dict.fromkeys(TYPES, 0.0)
    for stage, (seconds, products, barriers) in by_stage.items():
        types["products"] += products
        types["barriers"] += barriers
        types["attention" if stage in _ATTENTION else "rest"] += seconds - products - barriers
    return {
        "steps": sum(steps for steps, _ in rounds),
        "step_s": _rounded(sum(seconds for seconds, _, _ in by_stage.values())),
        "stages_s": {stage: _rounded(seconds) for stage, (seconds, _, _) in by_stage.items()},
        "types_s": {name: _rounded(seconds) for name, seconds in types.items()},
    }


def described(works: Mapping[str, Mapping[str, object]]) -> str:
    """A table for people: milliseconds of a step and shares, a column a work."""
    lines = [f"{'ms a step':12}" + "".join(f"{work:>20}" for work in works)]
    for part in ("stages_s", "types_s"):
        columns = [times[part] for times in works.values()]
        names = dict.fromkeys(name for column in columns if isinstance(column, dict) for name in column)
        wholes = [times["step_s"] for times in works.values()]
        for name in names:
            line = f"{name:12}"
            for column, whole in zip(columns, wholes, strict=True):
                assert isinstance(column, dict)
                assert isinstance(whole, float)
                seconds = column.get(name, 0.0)
                line += f"{seconds * 1e3:12.3f} {seconds / whole:6.1%} "
            lines.append(line.rstrip())
        lines.append("")
    return "\n".join(lines)


def _rounded(seconds: float) -> float:
    return round(seconds, 8)
