"""What a worker tells of itself for the operator's calculator: what its model demands, and how fast its warm-up was."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """Sizes of the model as it is packed, and the times of one request alone."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_weights: int
    """Elements of all layers' matrices that a token is multiplied with; of experts those that it takes."""
    layer_bytes: int
    """Of the layers' matrices without experts."""
    head_weights: int
    head_bytes: int
    other_bytes: int
    """Of an embedding that is not the head too."""
    kv_type: str
    kv_tokens: int
    """That its pages hold."""
    vendor: str
    """The processor's: "amd" or "intel"."""
    prompt_tokens: int
    """Of the warm-up's request."""
    prompt_s: float
    """From its submission to its first token."""
    token_s: float
    """Of a step that decodes it."""
    memory_left_bytes: int
    """That the machine had left after the warm-up, for all its workers."""
    expert_bytes: int = 0
    """Of all experts of all layers."""
    expert_weights: int = 0
    experts: int = 0
    """Of a layer, of which a token takes `experts_per_token`."""
    experts_per_token: int = 0
    windows: Sequence[Sequence[int]] = ()
    """Of layers that see the last keys only: how many keys, and how many layers."""
    keeps_windows: bool = False
    """Whether those layers keep no more than these."""
    states: Mapping[str, int] = field(default_factory=dict)
    """The fields of `app.capacity.states.States`; none: all layers have attention."""
    mixed: Mapping[str, Any] | None = None
    """The fields of `app.capacity.heads.MixedHeads`; None: all layers' heads are alike."""

    def to_wire(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any] | None) -> Self | None:
        """None where there is none. Raises TypeError if a field is missing or unknown."""
        return None if values is None else cls(**values)
