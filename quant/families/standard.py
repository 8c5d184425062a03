"""Code shared by most families: the usual keys of a configuration, and tensors under Llama's names.

A family's own file combines these. Knows no model type.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from quant.errors import SourceError
from quant.families.description import Activation, Decoder, Layer, Rope
from quant.families.family import Config, Piece, Tensor
from quant.families.names import engine_tensors
from quant.families.settings import Settings

ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""transformers' names of activations."""

MOST_LAYERS: Final = 1024
MOST_HEADS: Final = 1024
MOST_HEAD_DIM: Final = 1024
"""The engine's limit."""

PiecesOf = Callable[[str], tuple[Piece, ...]]
"""The engine's name of a tensor -> its stored rows."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that every configuration has."""

    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied_head: bool

    def decoder(self, layers: Sequence[Layer], *, ropes: tuple[Rope, ...], **options: Any) -> Decoder:
        """The description of a model with these layers; options: Decoder's other fields."""
        kinds = tuple(dict.fromkeys(layers))
        return Decoder(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_positions=self.max_positions,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            kinds=kinds,
            layers=tuple(kinds.index(layer) for layer in layers),
            ropes=ropes,
            tied_head=self.tied_head,
            **options,
        )


def read_sizes(settings: Settings, *, tied: bool = False) -> Sizes:
    """The sizes under their usual names. tied: the family's default for tie_word_embeddings."""
    required = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
    )  # fmt: skip
    vocab, hidden, layers, heads, positions = (settings.size(key) for key in required)
    for key, value, most in (("num_hidden_layers", layers, MOST_LAYERS), ("num_attention_heads", heads, MOST_HEADS)):
        if value > most:
            raise settings.wrong(key, f"is {value}, more than {most}")
    if "head_dim" not in settings and hidden % heads:
        raise SourceError(f"{settings.where}: {heads} heads do not divide a hidden size of {hidden}")
    head_dim = settings.size("head_dim", hidden // heads)
    kv_heads = settings.size("num_key_value_heads", heads)
    if head_dim > MOST_HEAD_DIM:
        raise settings.wrong("head_dim", f"is {head_dim}, more than {MOST_HEAD_DIM}")
    if heads % kv_heads or head_dim % 2:
        raise SourceError(
            f"{settings.where}: {heads} heads, {kv_heads} key-value heads and a head_dim of {head_dim} do not fit"
            " together"
        )
    return Sizes(
        vocab, hidden, positions, layers, heads, kv_heads, head_dim, settings.flag("tie_word_embeddings", tied)
    )


def activation_of(settings: Settings, key: str = "hidden_act", default: str = "silu") -> Activation:
    """An activation that the engine has. Raises UnsupportedModelError."""
    name = settings.text(key, default)
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise settings.unsupported(key, f"is the activation {name!r}, which is not supported; supported: {known}")
    return ACTIVATIONS[name]


def norm_epsilon(settings: Settings, key: str = "rms_norm_eps", default: float = 1e-6) -> float:
    """The epsilon added to a mean square before its root is taken."""
    epsilon = settings.positive(key, default)
    if epsilon >= 1:
        raise settings.wrong(key, f"is {epsilon!r}, not less than 1")
    return epsilon


def window_of(settings: Settings, max_positions: int, key: str = "sliding_window") -> int:
    """A window's keys, the token itself included; 0 where the key is absent or the window holds every context."""
    window = settings.size(key) if key in settings else 0
    return window if window < max_positions else 0


def layer_types(
    settings: Settings, layers: int, default: Callable[[int], Literal["full_attention", "sliding_attention"]]
) -> list[str]:
    """The attention of every layer, from `layer_types` or, where that is absent, by its number."""
    if "layer_types" not in settings:
        return [default(number) for number in range(layers)]
    types = settings.items("layer_types", layers)
    for each in types:
        if each not in ("full_attention", "sliding_attention"):
            raise settings.unsupported("layer_types", f"names {each!r}, which is not supported")
    return types


def assembled(decoder: Decoder, pieces_of: PiecesOf) -> dict[str, Tensor]:
    """Returns every tensor of a description with its stored rows."""
    return {
        name: Tensor(tensor.role, tensor.shape, pieces_of(name), tensor.count)
        for name, tensor in engine_tensors(decoder).items()
    }


def bare_names(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Maps every tensor to a stored one without "model.": saved from the model without a head, as encoders are."""
    return assembled(decoder, lambda name: (Piece(name.removeprefix("model.")),))


def same_names(_: Config, decoder: Decoder) -> Mapping[str, Tensor]:
    """Maps every tensor to a stored one of the same name."""
    return assembled(decoder, lambda name: (Piece(name),))
