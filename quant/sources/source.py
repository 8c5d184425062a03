"""What a checkpoint looks like to the conversion, whatever file it comes from.

Names and shapes are Hugging Face's, query and key rows too. Tensors are read by row ranges, straight from the
file, so nobody ever needs to hold one whole. Does not know what the values are for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quant.matrix import F32, QuantizedMatrix

StoredType = Literal["fp32", "fp16", "bf16", "q6_k", "sym_int4", "asym_int4", "int8"]


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor, under its Hugging Face name.

    stored: what the file holds. `read(begin, end)` gives rows [begin, end) (elements, of a vector): fp32
    values if a float type is stored, else the codes as they are. Raises SourceError where the file fails.
    """

    name: str
    shape: tuple[int, ...]
    stored: StoredType
    group: int
    """Inputs that share a scale; 0 where `stored` is a float type."""
    read: Callable[[int, int], F32 | QuantizedMatrix]


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
