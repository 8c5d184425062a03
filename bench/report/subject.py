"""The model that a report is about: a checkpoint, or a converted folder; and its conversions, made when needed.

Every conversion is rounded to nearest, which takes seconds to minutes and needs little memory. Does not measure.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.eval.open_model import exact_qtype
from quant.conversion.convert import convert
from quant.errors import OutputError
from quant.files.free_space import check_free_space
from quant.files.json_file import read_json_object
from quant.packed.packed_file import FILE_NAME, PackedFile, is_packed_model
from quant.sources.open_source import open_source

SERVED_QTYPE: Final = "sym_int4"
"""The type of a checkpoint's conversion that speeds are measured with."""
BYTES_PER_WEIGHT: Final = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0625, "sym_int4": 0.5625, "asym_int4": 0.625, "lut4": 0.5625,
}  # fmt: skip
"""Bytes per weight in groups of 64, to check disk and memory; an int8 embedding is extra."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is measured."""

    name: str
    """The folder's or the file's name, without its place."""
    path: Path
    is_checkpoint: bool
    is_random: bool
    """Weights of `redoubt synth`: right for speed and memory, without a meaning."""
    weights: int
    """Weights of all matrices."""
    embedding_weights: int
    context_tokens: int
    family: str
    qtype: str
    """A converted folder's type; of a checkpoint the one that holds its values exactly."""
    conversions: Path
    """The folder of its conversions."""

    @classmethod
    def read(cls, path: Path, conversions: Path) -> "Subject":
        """Raises QuantError for what is neither a converted model nor a checkpoint, OSError."""
        if is_packed_model(path):
            packed = PackedFile(path / FILE_NAME)
            config: Any = read_json_object(path / "config.json")
            sizes = {name: info.rows * info.cols for name, info in packed.matrices.items()}
            qtype, origin, is_checkpoint = packed.metadata["qtype"], packed.metadata.get("source", ""), False
        else:
            source = open_source(path)
            config = source.config
            sizes = {
                name: tensor.shape[0] * tensor.shape[1]
                for name, tensor in source.tensors.items()
                if len(tensor.shape) == 2
            }
            qtype, origin, is_checkpoint = exact_qtype(source), source.name, True
        return cls(
            name=path.resolve().name,
            path=path,
            is_checkpoint=is_checkpoint,
            is_random=origin.startswith("random"),
            weights=sum(sizes.values()),
            embedding_weights=sizes.get("model.embed_tokens.weight", 0),
            context_tokens=int(config["max_position_embeddings"]),
            family=str(config.get("model_type", "")),
            qtype=qtype,
            conversions=conversions,
        )

    def file_bytes(self, qtype: str) -> int:
        """Approximate size of a conversion on disk and in memory; of a converted folder its own size."""
        if not self.is_checkpoint:
            return (self.path / FILE_NAME).stat().st_size
        wider = 0.0 if qtype in ("fp32", "bf16", "fp16", "int8") else BYTES_PER_WEIGHT["int8"] - BYTES_PER_WEIGHT[qtype]
        return int(self.weights * BYTES_PER_WEIGHT[qtype] + self.embedding_weights * wider)

    def folder(self, qtype: str) -> Path:
        """Path of the conversion, which need not exist yet."""
        if not self.is_checkpoint:
            return self.path
        return self.conversions / f"{self.name.removesuffix('.gguf')}-{qtype}"

    def converted(self, qtype: str) -> Path:
        """The conversion, made if it is not there. Raises QuantError."""
        folder = self.folder(qtype)
        if not is_packed_model(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            convert(self.path, folder, qtype=qtype, method="rtn", force=folder.exists(), progress=sys.stderr.isatty())
        return folder

    def served(self) -> Path:
        """The folder that speeds are measured with. Raises QuantError."""
        return self.converted(SERVED_QTYPE)

    def remove(self, qtype: str) -> None:
        """Removes a conversion, never the model itself."""
        if self.is_checkpoint:
            shutil.rmtree(self.folder(qtype), ignore_errors=True)

    def check_disk(self, qtypes: tuple[str, ...], *, keep: bool) -> None:
        """Raises OutputError if the disk lacks room for what is there at a time: all, or the served one and another."""
        if not self.is_checkpoint:
            return
        sizes = [self.file_bytes(qtype) for qtype in qtypes if not is_packed_model(self.folder(qtype))]
        needed = sum(sizes) if keep else max(sizes, default=0) + self.file_bytes(SERVED_QTYPE)
        try:
            check_free_space(self.conversions / "model", needed)
        except OutputError as error:
            raise OutputError(f"{error}; give --out a folder on a larger disk") from error
