"""What a model demands of a machine: bytes to read, multiply-adds to make, bytes to keep.

From a completed config.json and the sizes of the matrices. Does not know machines, nor how fast anything is, nor how
matrices are packed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_KV_NUMBER_BYTES: Final[Mapping[str, int]] = {"int16": 2, "bf16": 2, "int8": 1, "fp32": 4}
_KV_SCALE_BYTES: Final = 4
"""Of a token and head, for the types whose numbers are integers."""
KV_TYPES: Final = tuple(_KV_NUMBER_BYTES)
NARROW_HIDDEN: Final = 1024
"""Models narrower than this compute a second int8 term."""


class CapacityError(ValueError):
    """A plan that cannot be made; the message names what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Elements and bytes of a model's packed matrices."""

    layer_weights: int
    """Elements of all layers' matrices: the multiply-adds of a token, without the head and attention."""
    layer_bytes: int
    head_weights: int
    head_bytes: int
    other_bytes: int
    """An embedding that is not the head too: kept in memory, of which a step reads a few rows."""
    type_name: str
    """Such as "sym_int4 in groups of 64"."""

    @property
    def weight_type(self) -> str:
        """Such as "sym_int4"."""
        return self.type_name.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model demands."""

    name: str
    matrices: Matrices
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    """The longest context that the model was trained for."""

    @property
    def weights(self) -> int:
        """Elements that a token is multiplied with: layers and head."""
        return self.matrices.layer_weights + self.matrices.head_weights

    @property
    def read_bytes(self) -> int:
        """Bytes of the matrices that each step reads."""
        return self.matrices.layer_bytes + self.matrices.head_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices."""
        return self.read_bytes + self.matrices.other_bytes

    @property
    def attention_macs_per_key(self) -> int:
        """Multiply-adds of one query token with one key and its value, over all layers."""
        return 2 * self.heads * self.head_dim * self.layers

    def kv_bytes_per_token(self, kv_type: str) -> int:
        """Bytes of a token's keys and values, over all layers. Raises CapacityError for an unknown type."""
        if kv_type not in _KV_NUMBER_BYTES:
            raise CapacityError(f"the type of keys and values {kv_type!r} is not one of {', '.join(KV_TYPES)}")
        scale_bytes = _KV_SCALE_BYTES if kv_type in ("int16", "int8") else 0
        return self.layers * self.kv_heads * (2 * self.head_dim * _KV_NUMBER_BYTES[kv_type] + scale_bytes)


def demand_of(config: Mapping[str, Any], matrices: Matrices, name: str) -> Demand:
    """The demand of a model with a completed config.json."""
    return Demand(
        name=name,
        matrices=matrices,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        context_tokens=config["max_position_embeddings"],
    )
