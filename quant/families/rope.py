"""Computes RoPE frequencies, with all scaling applied, from a configuration.

Each formula's source stands at its function. They are computed in double precision in one fixed order, because the
engine multiplies positions with exactly these numbers. Knows both of transformers' spellings: `rope_theta` with
`rope_scaling`, and `rope_parameters`. Does not know what is rotated.
"""

import math
from collections.abc import Callable
from typing import Final

from quant.errors import SourceError
from quant.families.description import DynamicRope, Rope
from quant.families.settings import Settings

_TWO_PI: Final = 2 * math.pi


def rope_of(
    settings: Settings,
    head_dim: int,
    max_positions: int,
    *,
    theta: float = 10000.0,
    rotary_factor: float = 1.0,
    partial: bool = False,
    layer_type: str | None = None,
) -> Rope:
    """The rotary embedding of a configuration, or that of one of its layer types.

    theta, rotary_factor: the family's defaults. partial: whether the family looks for a `partial_rotary_factor`; where
    it does not, another one than the default is refused. Raises SourceError, UnsupportedModelError.
    """
    parameters = settings.section("rope_parameters") or settings.section("rope_scaling") or Settings({}, settings.where)
    if layer_type is not None and isinstance(parameters.get(layer_type), dict):
        parameters = parameters.section(layer_type) or parameters
    theta = settings.positive("rope_theta", theta)
    rotary_factor = _rotary_factor(settings, rotary_factor, partial)
    trained = settings.positive("original_max_position_embeddings", max_positions)
    trained_key = "original_max_position_embeddings"
    return rope_from(
        parameters,
        head_dim,
        max_positions,
        theta=theta,
        rotary_factor=rotary_factor,
        partial=partial,
        trained=trained if trained_key in settings else None,
    )


def rope_from(
    parameters: Settings,
    head_dim: int,
    max_positions: int,
    *,
    theta: float = 10000.0,
    rotary_factor: float = 1.0,
    partial: bool = False,
    trained: float | None = None,
) -> Rope:
    """The rotary embedding that one object of RoPE parameters describes.

    theta and rotary_factor are defaults; trained, the positions before scaling, has precedence over the object's.
    """
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind not in _SCALINGS:
        raise parameters.unsupported(
            "rope_type", f"{kind!r} is not supported as RoPE scaling; supported: {', '.join(_SCALINGS)}"
        )
    theta = parameters.positive("rope_theta", theta)
    rotary_factor = _rotary_factor(parameters, rotary_factor, partial or kind == "proportional")
    if theta <= 1:
        raise parameters.wrong("rope_theta", f"is {theta!r}, not greater than 1")
    if rotary_factor > 1:
        raise parameters.wrong("partial_rotary_factor", f"is {rotary_factor!r}, more than 1")
    # "proportional" leaves some frequencies at 0 and rotates whole heads, so that pairs are of the whole head.
    rotary_dim = head_dim if kind == "proportional" else int(head_dim * rotary_factor)
    if rotary_dim < (4 if kind == "dynamic" else 2) or rotary_dim % 2:
        raise parameters.wrong("partial_rotary_factor", f"makes {rotary_dim} rotary numbers of {head_dim} a head")
    if trained is None:
        trained = parameters.positive("original_max_position_embeddings", max_positions)
    try:
        rope = _SCALINGS[kind](parameters, theta, rotary_dim, trained, float(max_positions))
    except (OverflowError, ValueError, ZeroDivisionError) as error:
        raise SourceError(f"{parameters.where}: its RoPE parameters are out of range") from error
    for frequency in (*rope.frequencies, *(rope.long_frequencies or ())):
        if not 0 <= frequency < math.inf:
            raise SourceError(f"{parameters.where}: its RoPE parameters give a frequency of {frequency}")
    return rope


def _rotary_factor(settings: Settings, default: float, partial: bool) -> float:
    found = settings.positive("partial_rotary_factor", default)
    if found != default and not partial:
        raise settings.unsupported("partial_rotary_factor", f"is {found!r}; models of this type rotate whole heads")
    return found


def rope_of_layers(parameters: Settings, head_dim: int, max_positions: int, *, theta: float = 10000.0) -> Rope:
    """The rotary embedding of one layer type, from an object of its own.

    transformers does not look for `truncate` in such an object, so it is refused.
    """
    parameters.only("truncate", True)
    return rope_from(parameters, head_dim, max_positions, theta=theta)


def base_frequencies(theta: float, rotary_dim: int) -> list[float]:
    """Base frequencies, radians per position, [rotary_dim / 2]. RoFormer (Su et al. 2021), equation 15."""
    return [math.pow(theta, -2.0 * i / rotary_dim) for i in range(rotary_dim // 2)]


def _default(_: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    return Rope(rotary_dim, tuple(base_frequencies(theta, rotary_dim)))


def _proportional(parameters: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    """Gemma 4: only the first `partial_rotary_factor` of a head's frequencies are not 0."""
    rotated = int(parameters.positive("partial_rotary_factor", 1.0) * rotary_dim // 2)
    factor, frequencies = parameters.positive("factor", 1.0), base_frequencies(theta, rotary_dim)
    return Rope(rotary_dim, tuple(each / factor if i < rotated else 0.0 for i, each in enumerate(frequencies)))


def _linear(parameters: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    factor = parameters.positive("factor")
    return Rope(rotary_dim, tuple(frequency / factor for frequency in base_frequencies(theta, rotary_dim)))


def _dynamic(parameters: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    """Dynamic NTK (bloc97 and emozilla, 2023); the engine grows theta by each token's own position."""
    growth = DynamicRope(theta, parameters.positive("factor"), int(positions))
    return Rope(rotary_dim, tuple(base_frequencies(theta, rotary_dim)), dynamic=growth)


def _llama3(parameters: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
    factor, low = parameters.positive("factor"), parameters.positive("low_freq_factor")
    high = parameters.positive("high_freq_factor")
    if high <= low:
        raise parameters.wrong("high_freq_factor", "is not greater than low_freq_factor")
    frequencies = []
    for frequency in base_frequencies(theta, rotary_dim):
        turns = trained * frequency / _TWO_PI  # within the trained length
        blend = _clamped((turns - low) / (high - low))
        frequencies.append(frequency * ((1 - blend) / factor + blend))
    return Rope(rotary_dim, tuple(frequencies))


def _yarn(parameters: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    """YaRN (Peng et al. 2023), section 3.2, with the ramp over dimensions that its code and Hugging Face's use."""
    factor = parameters.positive("factor", positions / trained)

    def dimension_of(turns: float) -> float:  # index of the pair that makes `turns` turns in the trained length
        return rotary_dim * math.log(trained / (turns * _TWO_PI)) / (2 * math.log(theta))

    low = dimension_of(parameters.positive("beta_fast", 32.0))
    high = dimension_of(parameters.positive("beta_slow", 1.0))
    if parameters.flag("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, rotary_dim - 1.0)
    if low == high:
        high += 0.001
    frequencies = []
    for i, frequency in enumerate(base_frequencies(theta, rotary_dim)):
        ramp = _clamped((i - low) / (high - low))
        frequencies.append(frequency * (ramp / factor + (1 - ramp)))
    return Rope(rotary_dim, tuple(frequencies), attention_factor=_yarn_attention_factor(parameters, factor))


def _yarn_attention_factor(parameters: Settings, factor: float) -> float:
    """YaRN's temperature as a factor on cosines and sines (equation 22; mscale as DeepSeek defined it)."""
    if "attention_factor" in parameters:
        return parameters.positive("attention_factor")
    mscale, mscale_all = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    if not (mscale and mscale_all):
        return _temperature(factor, 1.0)
    return _temperature(factor, mscale) / _temperature(factor, mscale_all)


def _temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def scores_temperature(settings: Settings) -> float:
    """The factor on scores in DeepSeek's models with scaled RoPE: the square of `mscale_all_dim`'s temperature."""
    parameters = settings.section("rope_parameters") or settings.section("rope_scaling")
    if parameters is None or parameters.text("rope_type", parameters.text("type", "default")) == "default":
        return 1.0
    mscale = parameters.number("mscale_all_dim", 0.0)
    return _temperature(parameters.positive("factor"), mscale) ** 2 if mscale else 1.0


def _longrope(parameters: Settings, theta: float, rotary_dim: int, trained: float, positions: float) -> Rope:
    """LongRoPE (Ding et al. 2024): divisors by dimension, which differ for long and short contexts."""
    factor = parameters.positive("factor", positions / trained)
    if "attention_factor" in parameters:
        attention = parameters.positive("attention_factor")
    else:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    base = base_frequencies(theta, rotary_dim)
    divisors = (parameters.numbers(key, rotary_dim // 2) for key in ("short_factor", "long_factor"))
    short, long = (tuple(each / by for each, by in zip(base, values, strict=True)) for values in divisors)
    return Rope(
        rotary_dim,
        short,
        attention_factor=attention,
        long_frequencies=long,
        short_positions=int(trained),
        long_attention_factor=attention,
    )


_Scaling = Callable[[Settings, float, int, float, float], Rope]
_SCALINGS: Final[dict[str, _Scaling]] = {
    "default": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)
