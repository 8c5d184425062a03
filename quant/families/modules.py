"""Tensors by their modules' names: the stored module, or its rows, behind each engine module.

A module has a weight and perhaps a bias; both are cut, reordered and scaled alike. Knows no families.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from quant.families.description import Decoder
from quant.families.family import Piece, Tensor
from quant.families.rows import Rows, part_of_heads
from quant.families.standard import assembled

_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")

ExpertPieces = Callable[[int, str, str], tuple[Piece, ...]]
"""(layer's number; "gate_proj", "up_proj" or "down_proj"; "weight" or "bias") -> the experts' stored rows in order."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored module, or some of its rows, that become an engine's module: values * scale + offset."""

    name: str
    rows: slice | Rows | None = None
    scale: float = 1.0
    offset: float = 0.0
    normalized: bool = False
    """Whether each row of the weight is divided by its Euclidean length."""
    cols: Rows | None = None
    exponential: bool = False
    padding: int = 0
    """Both as in Piece."""


Modules = Mapping[str, Stored | str]
"""Maps the engine's name of a module to the stored one."""


def by_module(
    decoder: Decoder,
    top: Modules,
    prefix: str,
    parts: Modules,
    experts: ExpertPieces | None = None,
    others: Mapping[str, tuple[Piece, ...]] | None = None,
) -> dict[str, Tensor]:
    """Every tensor of a decoder.

    top: modules outside layers ("model.norm"). parts: those of a layer ("self_attn.q_proj"), stored under prefix,
    which has {} for the layer's number. others: the stored rows of further tensors, by the engine's names.
    """

    def pieces_of(name: str) -> tuple[Piece, ...]:
        if others is not None and name in others:
            return others[name]
        found = _LAYER.fullmatch(name)
        module, kind = module_and_kind(name if found is None else found[2])
        if found is None:
            return (piece_of(top[module], "", kind),)
        if experts is not None and module.startswith("mlp.experts."):
            return experts(int(found[1]), module.removeprefix("mlp.experts."), kind)
        return (piece_of(parts[module], prefix.format(found[1]), kind),)

    return assembled(decoder, pieces_of)


def module_and_kind(name: str) -> tuple[str, str]:
    """Splits a tensor's name into its module and "weight" or "bias"; other names are a module of kind ""."""
    module, _, kind = name.rpartition(".")
    return (module, kind) if kind in ("weight", "bias") else (name, "")


def piece_of(stored: Stored | str, prefix: str, kind: str) -> Piece:
    """The stored rows of a module's tensor of that kind. prefix: put before the stored name."""
    stored = Stored(stored) if isinstance(stored, str) else stored
    return Piece(
        f"{prefix}{stored.name}.{kind}" if kind else f"{prefix}{stored.name}",
        rows=stored.rows,
        scale=stored.scale,
        offset=stored.offset if kind == "weight" else 0.0,
        normalized=stored.normalized and kind == "weight",
        cols=stored.cols if kind == "weight" else None,
        exponential=stored.exponential,
        padding=stored.padding,
    )


def fused_in_thirds(name: str, rows: int) -> dict[str, Stored]:
    """Query, key and value of a stored module, `rows` rows each, one after another."""
    return {
        f"self_attn.{part}_proj": Stored(name, slice(number * rows, (number + 1) * rows))
        for number, part in enumerate("qkv")
    }


def fused_by_heads(name: str, groups: int, parts: tuple[int, int, int], head_dim: int) -> dict[str, Stored]:
    """Query, key and value of a stored module that is fused by groups of heads, as in `rows.part_of_heads`."""
    return {
        f"self_attn.{part}_proj": Stored(name, part_of_heads(groups, parts, number, head_dim))
        for number, part in enumerate("qkv")
    }


def usual_keys(
    config: Mapping[str, Any], defaults: Mapping[str, Any], spellings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Renames a configuration's keys to the usual ones, and adds its class's defaults for absent or null keys.

    spellings: the family's own key -> the usual one.
    """
    given = {key: value for key, value in config.items() if value is not None}
    usual = {to: given[key] for key, to in (spellings or {}).items() if key in given}
    return {**defaults, **given, **usual}


def prefixed(tensors: Mapping[str, Tensor], before: str, after: str) -> dict[str, Tensor]:
    """Replaces the prefix `before` of stored names by `after`."""

    def renamed(piece: Piece) -> Piece:
        return replace(piece, name=after + piece.name.removeprefix(before)) if piece.name.startswith(before) else piece

    return {name: replace(each, pieces=tuple(map(renamed, each.pieces))) for name, each in tensors.items()}
