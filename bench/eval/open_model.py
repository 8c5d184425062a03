"""Opens a model for an evaluation: a converted folder, or an unconverted checkpoint.

A checkpoint (a Hugging Face folder, a GGUF file) is the unquantized baseline: its exact values in a temporary packed
folder, as bf16 where that is exact, else as fp32, computed in fp32. Does not know what is evaluated.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from bench.eval.errors import EvalError
from bench.eval.text_windows import begin_tokens
from kernels import _native
from quant.conversion.convert import convert
from quant.files.json_file import read_json_object
from quant.packed.native_model import NativeModel
from quant.packed.packed_file import FILE_NAME, PackedFile, is_packed_model
from quant.sources.open_source import open_source
from quant.sources.source import Source


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How models run. None: int8 activations and int16 pages, and fp32 for an unconverted checkpoint."""

    threads: int | None = None
    compute_type: str | None = None
    kv_type: str | None = None


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A packed folder, how to run it, and its name in results."""

    path: Path
    """The path that the user gave."""
    folder: Path
    unquantized: bool
    options: ModelOptions

    def load(self, context_tokens: int, branches: int = 0) -> NativeModel:
        """The model on the native engine, its weights in the file's own pages. Raises what NativeModel raises."""
        return NativeModel(
            self.folder,
            context_tokens=context_tokens,
            branches=branches,
            threads=self.options.threads,
            compute_type=self.compute_type,
            kv_type=self.kv_type,
            weight_memory="mapped",
        )

    @property
    def compute_type(self) -> str:
        """Activations: "auto", "int8", "bf16" or "fp32"."""
        return self.options.compute_type or ("fp32" if self.unquantized else "int8")

    @property
    def kv_type(self) -> str:
        """Keys and values: "int16", "bf16", "int8" or "fp32"."""
        return self.options.kv_type or ("fp32" if self.unquantized else "int16")

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; it neither truncates nor pads, and puts BOS before a text where the service does."""
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise EvalError(f"{self.path}: has no tokenizer.json, which the converted model needs to read a text")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library raises bare Exception
            raise EvalError(f"{path}: is not a tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._set_bos(tokenizer)
        return tokenizer

    def _set_bos(self, tokenizer: Tokenizer) -> None:
        """Follows `add_bos_token` of the tokenizer's configuration, which counts more than its post-processor."""
        path = self.folder / "tokenizer_config.json"
        config = read_json_object(path) if path.is_file() else {}
        adds = config.get("add_bos_token")
        if adds is None or bool(adds) == bool(begin_tokens(tokenizer)):
            return
        bos = config.get("bos_token")
        name = bos.get("content") if isinstance(bos, dict) else bos
        number = tokenizer.token_to_id(name) if isinstance(name, str) else None
        if not adds:
            tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
        elif number is not None:
            tokenizer.post_processor = TemplateProcessing(single=f"{name} $A", special_tokens=[(name, number)])

    @property
    def context_tokens(self) -> int:
        """The model's longest context."""
        return int(read_json_object(self.folder / "config.json")["max_position_embeddings"])

    def description(self) -> dict[str, object]:
        """The description of the model in results."""
        metadata = PackedFile(self.folder / FILE_NAME).metadata
        return {
            "model": str(self.path),
            "qtype": metadata["qtype"],
            "group_size": int(metadata["group_size"]),
            "unquantized": self.unquantized,
            "compute_type": self.compute_type,
            "kv_type": self.kv_type,
            "tier": _native.default_tier(),
        }


def exact_qtype(source: Source) -> str:
    """The type that holds a checkpoint's values exactly: "fp16" or "bf16" where that does, else "fp32"."""
    stored = {tensor.stored for tensor in source.tensors.values() if len(tensor.shape) == 2}
    return next((kind for kind in ("fp16", "bf16") if stored == {kind}), "fp32")


@contextmanager
def open_model(path: Path, options: ModelOptions, *, progress: bool = True) -> Iterator[OpenModel]:
    """Yields the model at `path`; a checkpoint's temporary folder is removed afterwards.

    Raises QuantError for what is neither a converted model nor a checkpoint that can be read.
    """
    if is_packed_model(path):
        yield OpenModel(path, path, False, options)
        return
    qtype = exact_qtype(open_source(path))
    with tempfile.TemporaryDirectory(prefix="redoubt-eval-") as temporary:
        folder = Path(temporary) / "model"
        if progress:
            print(f"{path}: not converted; it is evaluated unquantized", file=sys.stderr)
        convert(path, folder, qtype=qtype, progress=progress)
        yield OpenModel(path, folder, True, options)
