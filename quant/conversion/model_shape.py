"""The sizes of a model that a conversion's cost depends on. Knows no times."""

from dataclasses import dataclass

from quant.families.description import Decoder, Latent, Layer


@dataclass(frozen=True, slots=True)
class StageShape:
    """Matrices of a layer that share an input, or such matrices of `experts` experts or heads."""

    outputs: int
    """Outputs of all matrices of one expert together."""
    inputs: int
    matrices: int
    """Number of one expert's matrices."""
    runs: int
    """How often the quantized layer computes it: for its own output and for the stages after it."""
    corrected: bool
    """Whether weights are corrected before their codes are chosen."""
    experts: int = 1
    per_token: int = 1
    """Experts per token."""

    @property
    def weights(self) -> int:
        """Number of weights of all experts."""
        return self.outputs * self.inputs * self.experts

    @property
    def used_weights(self) -> int:
        """Number of weights that a token uses."""
        return self.outputs * self.inputs * self.per_token


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's sizes that a conversion's cost depends on. stages: those of every layer."""

    stages: tuple[tuple[StageShape, ...], ...]
    hidden: int
    inner: int
    """Inner size of the widest MLP, all experts of a token together."""
    heads: int
    vocabulary: int

    @staticmethod
    def of(decoder: Decoder) -> "ModelShape":
        return ModelShape(
            stages=tuple(_stages(decoder, decoder.layer(number)) for number in range(len(decoder.layers))),
            hidden=decoder.hidden_size,
            inner=decoder.widest_inner,
            heads=decoder.heads,
            vocabulary=decoder.vocab_size,
        )

    @property
    def layers(self) -> int:
        return len(self.stages)

    @property
    def largest_layer(self) -> tuple[StageShape, ...]:
        """The stages of the layer with most weights."""
        return max(self.stages, key=weights_of)

    @property
    def weights(self) -> int:
        """Number of weights of all layers."""
        return sum(weights_of(stages) for stages in self.stages)


def weights_of(stages: tuple[StageShape, ...]) -> int:
    """Number of weights of a layer's matrices."""
    return sum(stage.weights for stage in stages)


def _stages(decoder: Decoder, layer: Layer) -> tuple[StageShape, ...]:
    hidden = decoder.hidden_size
    # Experts beside an MLP are two stages more, before which the layer's first parts run again.
    later = 2 if layer.mlp is not None and layer.experts is not None else 0
    stages: tuple[StageShape, ...]
    if layer.latent is not None:
        stages = _latent_stages(decoder, layer.latent)
    else:
        mixer, inputs = _mixer(decoder, layer, later)
        stages = (mixer, StageShape(hidden, inputs, 1, 3 + later, True))
    if layer.mlp is not None:
        gates, inner = 2 if layer.mlp.gated else 1, layer.mlp.inner
        stages = (
            *stages,
            StageShape(gates * inner, hidden, gates, 2 + later, True),
            StageShape(hidden, inner, 1, 1 + later, later == 0),
        )
    if layer.experts is None:
        return stages
    experts, count, per_token = layer.experts, layer.experts.count, layer.experts.per_token
    stages = (
        *stages,
        StageShape(2 * experts.inner, hidden, 2, 2, False, count, per_token),
        StageShape(hidden, experts.inner, 1, 1, False, count, per_token),
    )
    if not experts.shared_inner:
        return stages
    shared = experts.shared_inner
    return *stages, StageShape(2 * shared, hidden, 2, 2, True), StageShape(hidden, shared, 1, 1, False)


def _mixer(decoder: Decoder, layer: Layer, later: int) -> tuple[StageShape, int]:
    """The stage of the layer's first matrices, and the output projection's number of inputs."""
    hidden, kind = decoder.hidden_size, layer.attention
    if kind is not None:
        queries, keys = decoder.query_dim_of(kind), decoder.kv_dim_of(kind)
        gates = int(kind.output_gate)
        own = 0 if kind.keys_of is not None else 1 if kind.value_is_key else 2
        return StageShape((1 + gates) * queries + own * keys, hidden, 1 + own + gates, 4 + later, True), queries
    if layer.conv is not None:
        return StageShape(3 * hidden, hidden, 1, 4, True), hidden
    assert layer.delta is not None, "a layer has attention or what is in its place"
    values = layer.delta.value_heads * layer.delta.value_dim
    return StageShape(layer.delta.channels + values, hidden, 2, 4, True), values


def _latent_stages(decoder: Decoder, latent: Latent) -> tuple[StageShape, ...]:
    hidden, heads = decoder.hidden_size, decoder.heads
    queries, rank = heads * (latent.rope_dim + latent.nope_dim), latent.query_rank
    first = StageShape((rank or queries) + latent.rope_dim + latent.kv_rank, hidden, 2, 7 if rank else 6, True)
    return (
        first,
        *((StageShape(queries, rank, 1, 6, True),) if rank else ()),
        StageShape(latent.kv_rank, latent.nope_dim, 1, 5, False, heads, heads),
        StageShape(latent.value_dim, latent.kv_rank, 1, 4, False, heads, heads),
        StageShape(hidden, heads * latent.value_dim, 1, 3, True),
    )
