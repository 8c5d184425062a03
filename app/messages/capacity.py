"""What a worker reports for the operator's capacity calculator: its model's demands, and its warm-up times."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """Sizes of the packed model, and times of a single request."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_weights: int
    """Elements of all layers' matrices that a token is multiplied with; of experts, those that it is routed to."""
    layer_bytes: int
    """Bytes of the layers' matrices without experts."""
    head_weights: int
    head_bytes: int
    other_bytes: int
    """Includes an embedding that is not also the head."""
    kv_type: str
    kv_tokens: int
    """Capacity of its KV pages in tokens."""
    vendor: str
    """The processor's vendor: "amd" or "intel"."""
    prompt_tokens: int
    """Prompt length of the warm-up request."""
    prompt_s: float
    """Time from its submission to its first token."""
    token_s: float
    """Time of a step that decodes it."""
    memory_left_bytes: int
    """Memory that the machine had left after the warm-up, for all its workers."""
    expert_bytes: int = 0
    """Bytes of all experts of all layers."""
    expert_weights: int = 0
    experts: int = 0
    """Experts per layer, of which a token uses `experts_per_token`."""
    experts_per_token: int = 0
    windows: Sequence[Sequence[int]] = ()
    """Pairs for layers with a sliding window: window in keys, number of layers."""
    keeps_windows: bool = False
    """Whether those layers keep only the window's keys."""
    states: Mapping[str, int] = field(default_factory=dict)
    """The fields of `app.capacity.states.States`; empty: all layers have attention."""
    mixed: Mapping[str, Any] | None = None
    """The fields of `app.capacity.heads.MixedHeads`; None: all layers have the same heads."""

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any] | None) -> Self | None:
        """Returns None for None. Raises TypeError if a field is missing or unknown."""
        return None if values is None else cls(**values)
