"""A model's demands on a machine: bytes to read, multiply-adds to compute, bytes to keep.

Computed from a model's description and the sizes of its matrices. Does not know machines, nor how fast anything is, nor
how matrices are packed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from app.capacity.heads import MixedHeads
from app.capacity.states import NO_STATES, States

_KV_NUMBER_BYTES: Final[Mapping[str, int]] = {"int16": 2, "bf16": 2, "int8": 1, "fp32": 4}
_KV_SCALE_BYTES: Final = 4
"""Bytes per token and head, for integer KV types."""
KV_TYPES: Final = tuple(_KV_NUMBER_BYTES)
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_LAYERS: Final = "model.layers."
_EXPERTS: Final = ".mlp.experts."
_LAYER_INPUTS: Final = "model.layer_inputs_proj."
_PROJECTIONS: Final = ("model.embed_proj.", "model.head_proj.")
_PREDICTOR: Final = "model.predictor."
_TABLES: Final = ("model.embed_layer_inputs.weight", "model.embed_positions.weight")
"""Rows by token or position (Gemma 4 E2B; learned positions), of which a step reads a few."""
NARROW_HIDDEN: Final = 1024
"""Models narrower than this compute a second int8 term."""


class CapacityError(ValueError):
    """The plan can't be made; the message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Elements and bytes of a model's packed matrices."""

    layer_weights: int
    """Elements of the layers' matrices that a token is multiplied with, without the head; of experts, its own ones."""
    layer_bytes: int
    """Bytes of the layers' matrices that every token uses, without experts."""
    head_weights: int
    head_bytes: int
    other_bytes: int
    """Bytes of an embedding that is not also the head: kept in memory, of which a step reads a few rows."""
    type_name: str
    """Name such as "sym_int4 in groups of 64"."""
    expert_bytes: int = 0
    """Bytes of all experts of all layers; expert_weights: their elements."""
    expert_weights: int = 0
    experts: int = 0
    """Experts per layer, of which a token uses `experts_per_token`."""
    experts_per_token: int = 0

    @property
    def weight_type(self) -> str:
        """Name such as "sym_int4"."""
        return self.type_name.partition(" ")[0]

    def touched_share(self, tokens: float) -> float:
        """The expected share of experts that `tokens` tokens use together, if tokens choose independently."""
        if not self.experts:
            return 0.0
        return float(1 - (1 - self.experts_per_token / self.experts) ** tokens)


@dataclass(frozen=True, slots=True)
class Windows:
    """How many keys tokens see with sliding windows, as means over the layers with attention."""

    layers: int
    windows: tuple[tuple[int, int], ...] = ()
    """Pairs (keys that a token sees, itself included; number of layers). The other layers see all keys."""
    by_queries: "Windows | None" = None
    """Windows weighted by query heads, if layers' heads differ; this object is then weighted by KV heads."""

    def seen(self, tokens: float) -> float:
        """Keys that a text's last token sees, so that their pages must be kept: `tokens` without windows."""
        if not self.windows:
            return tokens
        all_layers = self.layers - sum(layers for _, layers in self.windows)
        return (
            all_layers * tokens + sum(layers * min(window, tokens) for window, layers in self.windows)
        ) / self.layers

    def pairs(self, before: int, tokens: int) -> float:
        """Number of (query, visible key) pairs for `tokens` tokens after `before` others."""
        if self.by_queries is not None:
            return self.by_queries.pairs(before, tokens)
        every = tokens * before + tokens * (tokens + 1) / 2
        if not self.windows:
            return every
        all_layers = self.layers - sum(layers for _, layers in self.windows)
        total = all_layers * every
        for window, layers in self.windows:
            growing = min(max(window - before, 0), tokens)  # tokens that see all before them
            total += layers * (growing * before + growing * (growing + 1) / 2 + (tokens - growing) * window)
        return total / self.layers

    def read(self, before: int, tokens: int) -> float:
        """Keys that one of `tokens` tokens, after `before` otherssees: what a chunk of a prompt reads."""
        if not self.windows:
            return before + tokens
        all_layers = self.layers - sum(layers for _, layers in self.windows)
        seen = sum(layers * (min(before, window - 1) + tokens) for window, layers in self.windows)
        return (all_layers * (before + tokens) + seen) / self.layers


@dataclass(frozen=True, slots=True)
class Demand:
    """A model's demands."""

    name: str
    matrices: Matrices
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    """The longest context that the model was trained for."""
    windows: tuple[tuple[int, int], ...] = ()
    """The windows, as in `Windows`."""
    states: States = NO_STATES
    """States of the layers without attention."""
    mixed: MixedHeads | None = None
    """Replaces `kv_heads` and `head_dim` if layers' heads differ."""
    predictors: int = 0
    """Layers of multi-token prediction, which have keys and values too. What they save is not counted on."""
    vocab_size: int = 0
    """0: unknown."""
    is_head: bool = False
    """Whether it is a layer that drafts as a part of a model: an EAGLE-3 head, or the model's own."""

    @property
    def attention_layers(self) -> int:
        """Number of layers with keys and values."""
        return self.layers - self.states.layers

    @property
    def weights(self) -> int:
        """Elements that a token is multiplied with: layers and head."""
        return self.matrices.layer_weights + self.matrices.head_weights

    @property
    def all_weights(self) -> int:
        """Elements of layers and head, with all experts."""
        matrices = self.matrices
        taken = matrices.expert_weights * matrices.experts_per_token // max(matrices.experts, 1)
        return self.weights + matrices.expert_weights - taken

    @property
    def all_layer_bytes(self) -> int:
        """Bytes of the layers' matrices, with all experts."""
        return self.matrices.layer_bytes + self.matrices.expert_bytes

    def read_bytes(self, tokens: float) -> float:
        """Bytes of the matrices that a step with `tokens` tokens reads."""
        matrices = self.matrices
        return matrices.layer_bytes + matrices.head_bytes + matrices.touched_share(tokens) * matrices.expert_bytes

    @property
    def weight_bytes(self) -> int:
        return self.all_layer_bytes + self.matrices.head_bytes + self.matrices.other_bytes

    @property
    def keys(self) -> Windows:
        """How many keys tokens see."""
        if self.mixed is not None:
            mixed = self.mixed
            by_queries = Windows(mixed.query_numbers, tuple((window, queries) for window, queries, _ in mixed.windows))
            return Windows(mixed.kv_numbers, tuple((window, keys) for window, _, keys in mixed.windows), by_queries)
        return Windows(self.attention_layers, self.windows)

    @property
    def attention_macs_per_key(self) -> int:
        """Multiply-adds of one query token with one key and its value, over all layers."""
        if self.mixed is not None:
            return 2 * self.mixed.query_numbers
        return 2 * self.heads * self.head_dim * self.attention_layers

    def kv_bytes_per_token(self, kv_type: str) -> int:
        """Bytes of a token's keys and values, over all layers. Raises CapacityError for an unknown type."""
        if kv_type not in _KV_NUMBER_BYTES:
            raise CapacityError(f"the type of keys and values {kv_type!r} is not one of {', '.join(KV_TYPES)}")
        scale_bytes = _KV_SCALE_BYTES if kv_type in ("int16", "int8") else 0
        if self.mixed is not None:
            return 2 * self.mixed.kv_numbers * _KV_NUMBER_BYTES[kv_type] + self.mixed.kv_heads * scale_bytes
        layers = self.attention_layers + self.predictors
        return layers * self.kv_heads * (2 * self.head_dim * _KV_NUMBER_BYTES[kv_type] + scale_bytes)

    def predictor_bytes_per_token(self, kv_type: str) -> int:
        """The part of `kv_bytes_per_token` for layers of multi-token prediction."""
        return self.kv_bytes_per_token(kv_type) - replace(self, predictors=0).kv_bytes_per_token(kv_type)


def matrices_of(
    sizes: Mapping[str, tuple[int, int]], *, experts: int, experts_per_token: int, type_name: str
) -> Matrices:
    """Sums (elements, bytes) of every matrix, by the engine's names.

    experts, experts_per_token: of a layer with experts; 0 if none has them.
    """
    if EMBEDDING not in sizes:  # an EAGLE-3 head: a layer, and an output head of its own, if it has one
        head_name, own = f"{_PREDICTOR}head.weight", {EMBEDDING: (0, 0), HEAD: (0, 0)}
        for name, each in sizes.items():
            own[HEAD if name == head_name else name.replace(_PREDICTOR, f"{_LAYERS}0.")] = each
        sizes = own
    stacks = [each for name, each in sizes.items() if name.startswith(_LAYERS) and _EXPERTS in name]
    multiplied = (_LAYERS, _LAYER_INPUTS, *_PROJECTIONS)
    layers = [each for name, each in sizes.items() if name.startswith(multiplied) and _EXPERTS not in name]
    is_tied = HEAD not in sizes
    head = sizes[EMBEDDING if is_tied else HEAD]
    expert_weights = sum(weights for weights, _ in stacks)
    return Matrices(
        layer_weights=sum(weights for weights, _ in layers) + expert_weights * experts_per_token // max(experts, 1),
        layer_bytes=sum(size_bytes for _, size_bytes in layers),
        head_weights=head[0],
        head_bytes=head[1],
        other_bytes=(0 if is_tied else sizes[EMBEDDING][1])
        + sum(size_bytes for name, (_, size_bytes) in sizes.items() if name.startswith((*_TABLES, _PREDICTOR))),
        type_name=type_name,
        expert_bytes=sum(size_bytes for _, size_bytes in stacks),
        expert_weights=expert_weights,
        experts=experts,
        experts_per_token=experts_per_token,
    )


def experts_of(decoder: Mapping[str, Any]) -> tuple[int, int]:
    """Experts per layer and per token in a packed model's description; (0, 0) for a dense one."""
    found = [kind["experts"] for kind in decoder["kinds"] if kind.get("experts")]
    return (found[0]["count"], found[0]["per_token"]) if found else (0, 0)


def windows_of(decoder: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The windows in a packed model's description, as in `Windows`."""
    kinds = [decoder["kinds"][kind].get("attention") for kind in decoder["layers"]]
    found = Counter(int(attention.get("window", 0)) for attention in kinds if attention)
    return tuple(sorted((window, layers) for window, layers in found.items() if window))
