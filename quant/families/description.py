"""The description of a decoder: every number of a model that the engine needs.

A family turns its own config.json into this; the packed file carries it as JSON (`__metadata__["decoder"]`), and
kernels/model/config.h reads the same keys. Knows neither families nor tensors.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "swiglu_oai"]
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
    """Radians per position, [rotary_dim / 2], with all scaling applied."""
    attention_factor: float = 1.0
    """Multiplies cosines and sines (YaRN)."""
    dynamic: DynamicRope | None = None
    long_frequencies: tuple[float, ...] | None = None
    """LongRoPE: used instead if the model is loaded for contexts of more than `short_positions`."""
    short_positions: int = 0
    long_attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024): all heads share one latent vector per token.

    With c the normalized latent and p its rotated part, a key is [p | c] and a value is c, whatever the head: the
    decoder has one key-value head of rope_dim + kv_rank. Head h has the query [rotated | key_up_h q], with q its part
    that has no position, and gives value_up_h times the latent that it attends to.
    """

    kv_rank: int
    """Size of c."""
    nope_dim: int
    """Size of q."""
    rope_dim: int
    value_dim: int
    """Size of a head's output."""
    query_rank: int = 0
    """Size of the queries' own normalized latent; 0: queries come from the layer's input."""
    norm_epsilon: float = 1e-6
    """Epsilon of the latents' RMS norms."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One kind of attention; the number of query heads is the decoder's."""

    scale: float
    """Multiplies queries times keys."""
    rope: int | None = 0
    """Index into the decoder's ropes; None: keys have no position."""
    window: int = 0
    """Keys that a token sees, itself included; 0: all."""
    causal: bool = True
    """Whether a token sees none after itself; if not, it sees as many after as before itself."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: they stay."""
    sinks: bool = False
    """Whether each head has a learned score that takes part in the softmax and has no value."""
    slopes: tuple[float, ...] | None = None
    """ALiBi: for each head, how much a score loses per position of distance."""
    qk_norm: Literal["none", "head", "row"] = "none"
    """RMS norms of queries and keys: of each head, or of all heads together."""
    temperature_scale: float = 0.0
    """Queries are multiplied by 1 + temperature_scale * log(1 + floor(position / temperature_positions)); 0: not."""
    temperature_positions: int = 0
    qkv_bias: bool = False
    """Whether the query, key and value projections have biases; with latent attention, those that make the latents."""
    output_bias: bool = False
    kv_heads: int | None = None
    head_dim: int | None = None
    """None: the decoder's head_dim and kv_heads."""
    value_norm: bool = False
    """Whether each value head gets an RMS norm without a weight."""
    value_is_key: bool = False
    """Whether values are the key projection's output, before the keys' norm and rotation."""
    keys_of: int | None = None
    """The earlier layer, of the same heads and window, whose keys and values this one reads instead of its own."""
    output_gate: bool = False
    """Whether the output is multiplied by sigmoid(gate_proj(x)), number by number, before the output projection."""
    latent: Latent | None = None


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated DeltaNet (Yang et al. 2024): a layer whose memory of a sequence is one matrix per value head.

    Value head h takes the queries and keys of key head h // (value_heads / key_heads).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    """Tokens that the causal convolution over queries, keys and values sees, the token's own included."""

    @property
    def channels(self) -> int:
        """Channels of the convolution: all queries, all keys, all values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated causal convolution of each channel (LFM2): with b, c, v = input_proj(x): output_proj(c * conv(b * v))."""

    taps: int = 3
    """Tokens that the convolution sees, the token's own included."""
    bias: bool = False
    """Whether both projections and the convolution have biases."""


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
    """Whether the experts' matrices have biases; router_bias: whether the router has one."""
    router_bias: bool = False
    scoring: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    correction_bias: bool = False
    """Whether a learned bias is added to scores for the choice only."""
    groups: int = 1
    """Experts are chosen from the best `chosen_groups` of this many groups of neighbours."""
    chosen_groups: int = 1
    renormalize: bool = False
    """Whether the factors of a token's experts are divided by their sum."""
    scale: float = 1.0
    """Multiplies the factors."""
    shared_inner: int = 0
    """The inner size of an MLP that all tokens take; 0: there is none."""
    shared_gate: bool = False
    """Whether the shared MLP's output is multiplied by sigmoid(w x)."""
    router_norm: bool = False
    """Whether the router's input is the residual stream after a norm of its own, instead of the experts' input."""
    expert_scale: bool = False
    """Whether each expert has a learned number that multiplies its factors."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of layer.

    With x the residual stream and N the norms that are there:

    x += N_attention_output(attention(N_attention(x))); x += N_mlp_output(mlp(N_mlp(x))).
    norms_sum: the outer norms are of the sums: x = N_attention_output(x + attention(N_attention(x))), and so on.
    parallel: both read the x from before the layer. A layer has attention, or `delta` or `conv` in its place.
    With both an MLP and experts, neither of them parallel:

    x += N_mlp_output(N_dense_output(mlp(N_mlp(x))) + N_experts_output(experts(N_experts(x)))).
    """

    attention: Attention | None = None
    mlp: Mlp | None = None
    experts: Experts | None = None
    delta: DeltaNet | None = None
    conv: ShortConv | None = None
    attention_norm: bool = True
    attention_output_norm: bool = False
    mlp_norm: bool = True
    mlp_output_norm: bool = False
    norms_sum: bool = False
    """Needs both output norms."""
    parallel: bool = False
    """Without an own mlp_norm a parallel MLP takes the attention's normalized input."""
    scaled: bool = False
    """Whether a learned number multiplies x at the layer's end. Needs an mlp_output_norm."""

    @property
    def latent(self) -> Latent | None:
        """The latent attention's settings."""
        return None if self.attention is None else self.attention.latent


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs of layers beside the residual stream x: for each token, a vector of `size` numbers per layer.

    With e the token's embedding as the first layer gets it, all layers' inputs are N_inputs(projection(e)) +
    embedding_scale * embed_inputs(token), where N_inputs is an RMS norm of each. At its end, before it is scaled, a
    layer adds N_input(output(activation(gate(x)) * input)).
    """

    size: int
    embedding_scale: float = 1.0
    activation: Activation = "silu"


Pooling = Literal["mean", "first", "last"]


HeadActivation = Literal["identity", "tanh", "gelu", "relu", "silu"]
"""gelu: the exact one, with the error function."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A layer behind the pooling: N(activation(weight x + bias)), where N is there if its epsilon is."""

    rows: int
    cols: int
    bias: bool = True
    activation: HeadActivation = "identity"
    norm_epsilon: float = 0.0
    """Of a LayerNorm without a bias; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """What is made of the last layer's output. A text is computed in one step, and nothing of it is kept."""

    pooling: Pooling
    """Of a text's tokens: their mean, the first or the last."""
    normalized: bool = True
    """Whether the vector is scaled to length 1."""
    dense: tuple[Dense, ...] = ()
    scores: bool = False
    """Whether the result is one number, a reranker's logit; of two rows of the last layer it is their difference."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A layer that drafts, behind the model's own: of multi-token prediction, or an EAGLE-3 head.

    kernels/step/predictor.h has the formula of each.
    """

    kind: int
    """Which of the decoder's kinds the layer is of."""
    head_tokens: int = 0
    """Rows of a head of its own, for that many of the likeliest tokens; 0: it uses the model's head."""
    eagle: bool = False
    states: tuple[int, ...] | None = None
    """This and the rest of an EAGLE-3 head: after how many layers the hidden states are taken that it reads; None:
    after 2, n // 2 and n - 3 of n."""
    input_norm: bool = False
    """Whether those states together have a norm."""
    normalized_residual: bool = False
    """Whether the layer adds to the hidden state after its norm, not before it."""
    normalized_output: bool = False
    """Whether the next draft takes the state after the output norm, not before it."""


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
    """Whether the layer norms have biases; those of queries and keys are RMS norms without one."""
    final_norm: bool = True
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    embedding_size: int = 0
    """Columns of the embedding and the head, which projections join to hidden_size; 0: hidden_size, and none."""
    learned_positions: bool = False
    """Whether a learned vector for each of max_positions is added to the embedding, before its norm."""
    token_types: int = 0
    """Of tokens; each has a learned vector that is added too. Several need learned_positions."""
    tied_head: bool = False
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    layer_inputs: LayerInputs | None = None
    encoder: Encoder | None = None
    predictor: Predictor | None = None

    @property
    def is_draft_head(self) -> bool:
        """Whether this is an EAGLE-3 head alone, which has no layers but its own."""
        return not self.layers

    @property
    def embedding_cols(self) -> int:
        """Columns of the embedding and of the head."""
        return self.embedding_size or self.hidden_size

    def layer(self, number: int) -> Layer:
        """The kind of a layer."""
        return self.kinds[self.layers[number]]

    @property
    def runs_by_layer(self) -> bool:
        """Whether each layer can be computed from the previous one's output alone, without tokens and other layers."""
        attentions = [kind.attention for kind in self.kinds if kind.attention is not None]
        is_plain = bool(self.layers) and self.layer_inputs is None and self.encoder is None
        return is_plain and all(each.keys_of is None for each in attentions)

    def head_dim_of(self, attention: Attention) -> int:
        """Numbers of a head."""
        return self.head_dim if attention.head_dim is None else attention.head_dim

    def kv_dim_of(self, attention: Attention) -> int:
        """Numbers of all key heads together, and of all value heads."""
        heads = self.kv_heads if attention.kv_heads is None else attention.kv_heads
        return heads * self.head_dim_of(attention)

    def query_dim_of(self, attention: Attention) -> int:
        """Numbers of all query heads together."""
        return self.heads * self.head_dim_of(attention)

    def attention(self, number: int) -> Attention:
        """The attention of a layer that has one."""
        attention = self.layer(number).attention
        assert attention is not None, f"layer {number} has none"
        return attention

    @property
    def widest_inner(self) -> int:
        """The inner size of the widest MLP, all experts of a token together."""
        return max(_inner(kind) for kind in self.kinds)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types, without fields at their defaults."""
        described: dict[str, Any] = _without_defaults(self)
        return described


def decoder_from(entries: Mapping[str, Any]) -> Decoder:
    """Parses what `to_dict` wrote. Raises TypeError or KeyError for anything else."""
    ropes = tuple(_rope(each) for each in entries.get("ropes", ()))
    kinds = tuple(_kind(each) for each in entries["kinds"])
    lists: dict[str, Any] = {"layers": tuple(entries["layers"]), "ropes": ropes, "kinds": kinds}
    if "layer_inputs" in entries:
        lists["layer_inputs"] = LayerInputs(**entries["layer_inputs"])
    if "encoder" in entries:
        dense = tuple(Dense(**each) for each in entries["encoder"].get("dense", ()))
        lists["encoder"] = Encoder(**{**entries["encoder"], "dense": dense})
    if "predictor" in entries:
        predictor = dict(entries["predictor"])
        if predictor.get("states") is not None:
            predictor["states"] = tuple(predictor["states"])
        lists["predictor"] = Predictor(**predictor)
    return Decoder(**{**entries, **lists})


def _inner(layer: Layer) -> int:
    dense = layer.mlp.inner if layer.mlp is not None else 0
    experts = layer.experts
    return dense if experts is None else dense + experts.per_token * experts.inner + experts.shared_inner


def _rope(entries: Mapping[str, Any]) -> Rope:
    tuples = {key: tuple(value) for key, value in entries.items() if isinstance(value, list)}
    dynamic = {"dynamic": DynamicRope(**entries["dynamic"])} if "dynamic" in entries else {}
    return Rope(**{**entries, **tuples, **dynamic})


def _kind(entries: Mapping[str, Any]) -> Layer:
    parts: dict[str, Any] = {}
    if "attention" in entries:
        attention = dict(entries["attention"])
        if attention.get("slopes") is not None:
            attention["slopes"] = tuple(attention["slopes"])
        if attention.get("latent") is not None:
            attention["latent"] = Latent(**attention["latent"])
        parts["attention"] = Attention(**attention)
    if "delta" in entries:
        parts["delta"] = DeltaNet(**entries["delta"])
    if "conv" in entries:
        parts["conv"] = ShortConv(**entries["conv"])
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
