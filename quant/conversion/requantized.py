"""Measures the loss where a source's quantized type has no equal here, on the first rows of every such matrix.

Compares the source's values with those of the finished packed file. Does not know how they were quantized.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quant.codes.matrix import QuantizedMatrix
from quant.packed.packed_file import PackedFile
from quant.packed.packed_matrix import TILE_OUTPUTS
from quant.sources.source import Source


def requantization_notes(checkpoint: Source, packed: Path) -> Iterator[str]:
    """One sentence for every quantized type of the source that was requantized, with the relative error."""
    file = PackedFile(packed)
    errors: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for name, info in file.matrices.items():
        source = checkpoint.tensors[name]
        if source.group or not source.label or info.type == "fp32":
            continue
        rows = min(TILE_OUTPUTS, info.rows)
        values = source.read(0, rows)
        assert not isinstance(values, QuantizedMatrix)
        difference = file.dequantized_tiles(name, 0, 1) - values
        kind = f"{info.type}, group {info.group}" if info.group else info.type
        errors[source.label, kind].append((float((difference**2).sum()), float((values**2).sum())))
    for (label, kind), squares in errors.items():
        wrong, size = np.sum(squares, axis=0)
        relative = float(np.sqrt(wrong / size)) if size else 0.0
        matrices = f"{len(squares)} matri{'x' if len(squares) == 1 else 'ces'}"
        yield f"{label} has no equal here: {matrices} requantized as {kind}, which moves the weights by {relative:.2%}."
