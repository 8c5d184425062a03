"""Which decoding a call of `generate` asks for, by transformers' names and defaults.

An option that is not given comes from the model's generation_config.json, else it has transformers' default. Options
that contradict each other are refused, and so are given ones that would have no effect. Knows neither prompt nor model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.messages.requests import BeamParams, ContrastiveParams, SamplingParams

DEFAULTS: Final[Mapping[str, Any]] = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "length_penalty": 1.0,
    "early_stopping": False,
    "penalty_alpha": 0.0,
    "num_return_sequences": 1,
    "use_cache": True,
}
_OF_SAMPLING: Final[Mapping[str, tuple[Any, ...]]] = {
    "temperature": (0, 1),
    "top_k": (0, 50),
    "top_p": (1,),
    "min_p": (0,),
}
"""Options that change nothing without sampling, and the values at which they change nothing anyway."""
_OF_BEAMS: Final = ("length_penalty", "early_stopping")
_NUMBERS: Final = ("top_k", "num_beams", "num_beam_groups", "num_return_sequences")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen."""

    sampling: SamplingParams
    search: BeamParams | ContrastiveParams | None
    sequences: int
    """How many outputs are wanted."""
    uses_cache: bool

    @property
    def samples(self) -> bool:
        return self.search is None and self.sampling.temperature > 0


def decoding_of(given: Mapping[str, Any], configured: Mapping[str, Any]) -> Decoding:
    """Returns the decoding; None in `given` means not given. Raises ValueError naming the options at fault."""
    options = dict(DEFAULTS)
    for source in (configured, given):
        options.update({name: value for name in DEFAULTS if (value := source.get(name)) is not None})
    _check_values(options)
    search = _search(options, given)
    sequences = options["num_return_sequences"]
    _check_without_effect(options, given, search)
    penalty = float(options["repetition_penalty"])
    if options["do_sample"]:
        if options["temperature"] <= 0:
            raise ValueError("temperature: with do_sample=True it must be more than 0; do_sample=False is greedy")
        sampling = SamplingParams(
            float(options["temperature"]),
            options["top_k"],
            float(options["top_p"]),
            float(options["min_p"]),
            repetition_penalty=penalty,
        )
    else:
        if sequences > 1 and not isinstance(search, BeamParams):
            raise ValueError(
                f"num_return_sequences: {sequences} outputs would be equal without do_sample=True or num_beams above 1"
            )
        sampling = SamplingParams(temperature=0.0, repetition_penalty=penalty)
    return Decoding(sampling, search, sequences, bool(options["use_cache"]))


def _check_values(options: Mapping[str, Any]) -> None:
    for name in _NUMBERS:
        least = 0 if name == "top_k" else 1
        if isinstance(options[name], bool) or not isinstance(options[name], int) or options[name] < least:
            raise ValueError(f"{name}: {options[name]!r} is not a whole number of at least {least}")
    if options["early_stopping"] not in (True, False, "never"):
        raise ValueError(f"early_stopping: {options['early_stopping']!r} is not True, False or 'never'")


def _search(options: Mapping[str, Any], given: Mapping[str, Any]) -> BeamParams | ContrastiveParams | None:
    beams, groups, alpha = options["num_beams"], options["num_beam_groups"], float(options["penalty_alpha"])
    if groups > 1 and beams % groups:
        raise ValueError(f"num_beam_groups: {groups} does not divide num_beams, which is {beams}")
    if options["diversity_penalty"] and groups == 1:
        raise ValueError("diversity_penalty: only num_beam_groups above 1 have it")
    if groups > 1 and not options["diversity_penalty"] > 0:
        raise ValueError("diversity_penalty: has to be more than 0 with num_beam_groups, or all groups are the same")
    if beams > 1 and options["do_sample"]:
        raise ValueError("num_beams: beams draw nothing, and do_sample is True; give do_sample=False, or one beam")
    if alpha and options["do_sample"]:
        raise ValueError("penalty_alpha: contrastive search draws nothing, and do_sample is True; give do_sample=False")
    if beams > 1:
        if alpha:
            raise ValueError("penalty_alpha: contrastive search is none of beams, and num_beams is more than 1")
        if options["num_return_sequences"] > beams:
            raise ValueError(f"num_return_sequences: {options['num_return_sequences']} is more than num_beams, {beams}")
        return BeamParams(
            beams,
            options["num_return_sequences"],
            float(options["length_penalty"]),
            options["early_stopping"],
            groups,
            float(options["diversity_penalty"]),
        )
    for name in _OF_BEAMS:
        if given.get(name) not in (None, DEFAULTS[name]):
            raise ValueError(f"{name}: has no effect without num_beams above 1")
    if not alpha:
        return None
    if not 0 < alpha <= 1:
        raise ValueError(f"penalty_alpha: {alpha} is not 0 to 1")
    if options["top_k"] < 2:
        raise ValueError(f"top_k: with penalty_alpha it has to be at least 2, not {options['top_k']}")
    return ContrastiveParams(options["top_k"], alpha)


def _check_without_effect(
    options: Mapping[str, Any], given: Mapping[str, Any], search: BeamParams | ContrastiveParams | None
) -> None:
    if options["do_sample"]:
        return
    for name, harmless in _OF_SAMPLING.items():
        if name == "top_k" and isinstance(search, ContrastiveParams):
            continue
        if (value := given.get(name)) is not None and value not in harmless:
            raise ValueError(f"{name}: {value} has no effect without do_sample=True")
