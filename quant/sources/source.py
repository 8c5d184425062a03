"""The interface of a checkpoint, whatever file it comes from.

Names, shapes and the order of rows are the engine's. Tensors are read from the file by row ranges, so
that none has to be in memory whole. Does not know what the values are used for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, Literal

from quant.codes.matrix import F32, QuantizedMatrix
from quant.families.description import Decoder

StoredType = Literal["fp32", "fp16", "bf16", "fp8", "sym_int4", "asym_int4", "lut4", "int8", "other", "other_fine"]
"""Float types, our own types, and quantized types that we have no equal of ("other_fine": more than 4.5 bits)."""
FLOATS: Final[frozenset[StoredType]] = frozenset({"fp32", "fp16", "bf16", "fp8"})


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor: a stored one under its name in the file, or one of the engine's (`assembly`).

    stored: the type in the file. `read(begin, end)` returns rows [begin, end) (of a vector: elements), as the stored
    codes for our own types, else as fp32 values. Rows of a tensor of three dimensions, a stack of matrices, are counted
    through all of them. Raises SourceError where the file can't be read.
    """

    name: str
    shape: tuple[int, ...]
    stored: StoredType
    group: int
    """Inputs that share a scale; 0 if `stored` is not one of our integer types."""
    read: Callable[[int, int], F32 | QuantizedMatrix]
    table: tuple[int, ...] | None = None
    """lut4's table."""
    label: str = ""
    """The source's name of a quantized type, such as "Q6_K" or "GPTQ"."""
    rounded_scales: bool = False
    """Whether the codes are the source's, with scales or minima rounded to fp16."""


@dataclass(frozen=True, slots=True)
class Source:
    """An open checkpoint. `config` is Hugging Face's config.json, completed; `decoder` what the engine computes.

    `tensors` are the engine's (`families.names`), all of them and no others.
    `write_tokenizer(folder)` writes the tokenizer, the chat template and the generation defaults.
    `files` are all files that belong to it, which the fingerprint covers.
    """

    name: str
    config: Mapping[str, Any]
    decoder: Decoder
    tensors: Mapping[str, SourceTensor]
    files: tuple[Path, ...]
    write_tokenizer: Callable[[Path], None]
    notes: tuple[str, ...] = ()
    """Sentences for the user about this checkpoint."""


def left_out_note(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The note for the user about stored parts of a model that are not used: at most one sentence.

    names: stored tensors that nothing uses; patterns: those that may be left over; rotary buffers are not reported.
    """
    unused = list(names)
    parts = [
        pattern.strip("*.")
        for pattern in patterns
        if pattern.endswith(".*") and "rotary" not in pattern and any(fnmatch(name, pattern) for name in unused)
    ]
    return [f"Left out, since answers to text do not need them: {', '.join(parts)}."] if parts else []


def rounding_note(tensors: Mapping[str, SourceTensor]) -> list[str]:
    """The note for the user about kept codes with rounded scales: at most one sentence."""
    labels = sorted({tensor.label for tensor in tensors.values() if tensor.rounded_scales})
    if not labels:
        return []
    return [
        f"The codes of {', '.join(labels)} are kept; their scales and minima are rounded to fp16, by 0.05 % at most."
    ]
