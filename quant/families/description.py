"""The description of a decoder: everything about a model that the engine computes by, in numbers.

A family turns its own config.json into this; the packed file carries it as JSON (`__metadata__["decoder"]`), and
kernels/model/config.h reads the same keys. Knows neither families nor tensors.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu2", "swiglu_oai"]
"""swiglu_oai: with g = min(gate, 7), u = clamp(up, -7, 7): g * sigmoid(1.702 g) * (u + 1)."""


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """Dynamic NTK scaling: past `trained_positions` theta grows with the position."""

    theta: float
    factor: float
    trained_positions: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first rotary_dim numbers of a head, pairs (i, i + rotary_dim / 2)."""

    rotary_dim: int
    frequencies: tuple[float, ...]
    """Radians a position, [rotary_dim / 2], with all scaling applied."""
    attention_factor: float = 1.0
    """Multiplies cosines and sines (YaRN)."""
    dynamic: DynamicRope | None = None
    long_frequencies: tuple[float, ...] | None = None
    """LongRoPE: used instead where the model is loaded for contexts of more than `short_positions`."""
    short_positions: int = 0
    long_attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Attention:
    """One kind of attention; the numbers of heads are the decoder's."""

    scale: float
    """Multiplies queries times keys."""
    rope: int | None = 0
    """Which of the decoder's ropes; None: keys have no position."""
    window: int = 0
    """Keys that a token sees, itself included; 0: all."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: they stay."""
    sinks: bool = False
    """Whether each head has a learned score that takes part in the softmax and has no value."""
    slopes: tuple[float, ...] | None = None
    """ALiBi: by head, what a score loses for each position of distance."""
    qk_norm: Literal["none", "head", "row"] = "none"
    """RMS norms of queries and keys: of each head, or of all heads together."""
    temperature_scale: float = 0.0
    """Queries are multiplied by 1 + temperature_scale * log(1 + floor(position / temperature_positions)); 0: not."""
    temperature_positions: int = 0
    qkv_bias: bool = False
    output_bias: bool = False


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(activation(gate) * up); without a gate down(activation(up))."""

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` MLPs of which each token takes `per_token`, by the scores of a router."""

    count: int
    per_token: int
    inner: int
    activation: Activation = "silu"
    bias: bool = False
    """Of the experts' matrices; router_bias: of the router."""
    router_bias: bool = False
    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    correction_bias: bool = False
    """Whether a learned bias is added to scores for the choice only."""
    groups: int = 1
    """Experts are chosen from the best `chosen_groups` of so many groups of neighbours."""
    chosen_groups: int = 1
    renormalize: bool = False
    """Whether the factors of a token's experts are divided by their sum."""
    scale: float = 1.0
    """Multiplies the factors."""
    shared_inner: int = 0
    """The inner size of an MLP that all tokens take; 0: there is none."""
    shared_gate: bool = False
    """Whether the shared MLP's output is multiplied by sigmoid(w x)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of layer.

    With x the residual stream and N the norms that are there:

    x += N_attention_output(attention(N_attention(x))); x += N_mlp_output(mlp(N_mlp(x))).
    parallel: both read the x from before the layer.
    """

    attention: Attention
    mlp: Mlp | None = None
    experts: Experts | None = None
    attention_norm: bool = True
    attention_output_norm: bool = False
    mlp_norm: bool = True
    mlp_output_norm: bool = False
    parallel: bool = False
    """Without an own mlp_norm a parallel MLP takes the attention's normalized input."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model. `kinds` are the different layers, `layers` says for each layer which kind it is of."""

    vocab_size: int
    hidden_size: int
    max_positions: int
    heads: int
    kv_heads: int
    head_dim: int
    kinds: tuple[Layer, ...]
    layers: tuple[int, ...]
    ropes: tuple[Rope, ...] = ()
    norm: Literal["rms", "layer"] = "rms"
    norm_epsilon: float = 1e-6
    norm_bias: bool = False
    """Of all layer norms; those of queries and keys are RMS norms without one."""
    final_norm: bool = True
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    tied_head: bool = False
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float = 0.0

    def layer(self, number: int) -> Layer:
        """The kind of a layer."""
        return self.kinds[self.layers[number]]

    @property
    def widest_inner(self) -> int:
        """The inner size of the widest MLP, all experts of a token together."""
        widths = [kind.mlp.inner for kind in self.kinds if kind.mlp is not None]
        experts = [kind.experts for kind in self.kinds if kind.experts is not None]
        return max(widths + [each.per_token * each.inner + each.shared_inner for each in experts])

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: without what is at its default."""
        described: dict[str, Any] = _without_defaults(self)
        return described


def decoder_from(entries: Mapping[str, Any]) -> Decoder:
    """The description that `to_dict` wrote. Raises TypeError or KeyError for anything else."""
    ropes = tuple(_rope(each) for each in entries.get("ropes", ()))
    kinds = tuple(_kind(each) for each in entries["kinds"])
    lists = {"layers": tuple(entries["layers"]), "ropes": ropes, "kinds": kinds}
    return Decoder(**{**entries, **lists})


def _rope(entries: Mapping[str, Any]) -> Rope:
    tuples = {key: tuple(value) for key, value in entries.items() if isinstance(value, list)}
    dynamic = {"dynamic": DynamicRope(**entries["dynamic"])} if "dynamic" in entries else {}
    return Rope(**{**entries, **tuples, **dynamic})


def _kind(entries: Mapping[str, Any]) -> Layer:
    attention = dict(entries["attention"])
    if attention.get("slopes") is not None:
        attention["slopes"] = tuple(attention["slopes"])
    parts: dict[str, Any] = {"attention": Attention(**attention)}
    if "mlp" in entries:
        parts["mlp"] = Mlp(**entries["mlp"])
    if "experts" in entries:
        parts["experts"] = Experts(**entries["experts"])
    return Layer(**{**entries, **parts})


def _without_defaults(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_without_defaults(item) for item in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    entries = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if field.default is MISSING or item != field.default:
            entries[field.name] = _without_defaults(item)
    return entries
