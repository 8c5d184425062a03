"""A model's sizes, as far as the cost of a conversion depends on them. Knows no times."""

from dataclasses import dataclass

from quant.families.description import Decoder, Layer


@dataclass(frozen=True, slots=True)
class StageShape:
    """Matrices of a layer that share an input, or such matrices of `experts` experts."""

    outputs: int
    """Of all matrices of one expert together."""
    inputs: int
    matrices: int
    """Of one expert."""
    runs: int
    """How often the quantized layer computes it: for its own output and for the stages after it."""
    corrected: bool
    """Whether weights are moved before their codes are chosen."""
    experts: int = 1
    per_token: int = 1
    """How many of the experts a token takes."""

    @property
    def weights(self) -> int:
        """Of all experts."""
        return self.outputs * self.inputs * self.experts

    @property
    def used_weights(self) -> int:
        """Those that a token takes."""
        return self.outputs * self.inputs * self.per_token


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a conversion's cost depends on. stages: of every layer."""

    stages: tuple[tuple[StageShape, ...], ...]
    hidden: int
    inner: int
    """Of the widest MLP, all experts of a token together."""
    heads: int
    vocabulary: int

    @staticmethod
    def of(decoder: Decoder) -> "ModelShape":
        """From a description."""
        return ModelShape(
            stages=tuple(_stages(decoder, decoder.layer(number)) for number in range(len(decoder.layers))),
            hidden=decoder.hidden_size,
            inner=decoder.widest_inner,
            heads=decoder.heads,
            vocabulary=decoder.vocab_size,
        )

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.stages)

    @property
    def largest_layer(self) -> tuple[StageShape, ...]:
        """The stages of the layer with most weights."""
        return max(self.stages, key=weights_of)

    @property
    def weights(self) -> int:
        """Of all layers' matrices."""
        return sum(weights_of(stages) for stages in self.stages)


def weights_of(stages: tuple[StageShape, ...]) -> int:
    """Of a layer's matrices."""
    return sum(stage.weights for stage in stages)


def _stages(decoder: Decoder, layer: Layer) -> tuple[StageShape, ...]:
    hidden, queries, keys = decoder.hidden_size, decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    attention = (
        StageShape(queries + 2 * keys, hidden, 3, 4, True),
        StageShape(hidden, queries, 1, 3, True),
    )
    if layer.experts is None:
        assert layer.mlp is not None, "a layer has an MLP or experts"
        gates = 2 if layer.mlp.gated else 1
        inner = layer.mlp.inner
        mlp = (StageShape(gates * inner, hidden, gates, 2, True), StageShape(hidden, inner, 1, 1, True))
        return attention + mlp
    experts, count, per_token = layer.experts, layer.experts.count, layer.experts.per_token
    stages = (
        *attention,
        StageShape(2 * experts.inner, hidden, 2, 2, False, count, per_token),
        StageShape(hidden, experts.inner, 1, 1, False, count, per_token),
    )
    if not experts.shared_inner:
        return stages
    shared = experts.shared_inner
    return *stages, StageShape(2 * shared, hidden, 2, 2, True), StageShape(hidden, shared, 1, 1, False)
