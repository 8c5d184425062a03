"""What a checkpoint looks like to the conversion, whatever file it comes from.

Names and shapes are Hugging Face's, query and key rows too. Tensors are read by row ranges, straight from the
file, so nobody ever needs to hold one whole. Does not know what the values are for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quant.codes.matrix import F32, QuantizedMatrix

StoredType = Literal["fp32", "fp16", "bf16", "sym_int4", "asym_int4", "lut4", "int8", "other", "other_fine"]
"""Float types, types of ours, and quantized ones that we have no equal of; fine: of more than 4.5 bits."""


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor, under its Hugging Face name.

    stored: what the file holds. `read(begin, end)` gives rows [begin, end) (elements, of a vector): the codes as they
    are if a type of ours is stored, else fp32 values. Raises SourceError where the file fails.
    """

    name: str
    shape: tuple[int, ...]
    stored: StoredType
    group: int
    """Inputs that share a scale; 0 where `stored` is no type of ours."""
    read: Callable[[int, int], F32 | QuantizedMatrix]
    table: tuple[int, ...] | None = None
    """Of lut4."""
    label: str = ""
    """What the source calls a quantized type: "Q6_K", "GPTQ"."""
    rounded_scales: bool = False
    """Whether codes are the source's but scales or minima had to be rounded to fp16."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open checkpoint. `config` is Hugging Face's config.json, completed and checked.

    `write_tokenizer(folder)` writes the tokenizer, the chat template and the generation defaults.
    `files` are all files that make it up: what the fingerprint covers.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    files: tuple[Path, ...]
    write_tokenizer: Callable[[Path], None]
    notes: tuple[str, ...] = ()
    """What the user should know about this checkpoint, one sentence each."""


def rounding_note(tensors: Mapping[str, SourceTensor]) -> list[str]:
    """What to tell where codes were kept but scales were rounded."""
    labels = sorted({tensor.label for tensor in tensors.values() if tensor.rounded_scales})
    if not labels:
        return []
    return [
        f"The codes of {', '.join(labels)} are kept; their scales and minima are rounded to fp16, by 0.05 % at most."
    ]
