"""What a work demands of the machine at least: bytes that must be read and multiply-adds that must be made.

The demand is that of our own packed model, so that all engines are held against one limit. A step reads all matrices
once, and every key and value. It makes one multiply-add for each weight and token, and for attention two for each key
and element of a query, counted at the same peak. The head is needed at a prompt's last position alone. Knows no engine;
the rates that a machine reaches are those of `bench.rates`.
"""

from dataclasses import dataclass
from pathlib import Path

from bench.rates import Rates
from bench.work import Work
from kernels import _native
from quant.files.json_file import read_json_object
from quant.packed.packed_file import FILE_NAME, PackedFile


@dataclass(frozen=True, slots=True)
class Demand:
    """The bytes and multiply-adds that one model needs."""

    layer_weights: int
    """Elements of all layers' matrices, which are the multiply-adds for a token."""
    head_weights: int
    read_bytes: int
    """Bytes of all matrices that a step reads: layers and head."""
    kv_bytes_per_token: float
    attention_macs_per_key: int
    """Multiply-adds of one query token with one key and its value, over all layers."""

    @classmethod
    def of(cls, folder: Path, kv_type: str) -> "Demand":
        """Reads a packed model's header and config. Raises SourceError, OSError."""
        config = read_json_object(folder / "config.json")
        matrices = PackedFile(folder / FILE_NAME).matrices
        head_name = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
        head = matrices[head_name]
        layers = [info for name, info in matrices.items() if name.startswith("model.layers.")]
        heads, head_dim = config["num_attention_heads"], config["head_dim"]
        return cls(
            layer_weights=sum(info.rows * info.cols for info in layers),
            head_weights=head.rows * head.cols,
            read_bytes=sum(info.size_bytes for info in layers) + head.size_bytes,
            kv_bytes_per_token=_native.Model.kv_page_bytes(str(folder), kv_type) / _native.PAGE_TOKENS,
            attention_macs_per_key=2 * heads * head_dim * config["num_hidden_layers"],
        )

    def bytes_and_macs(self, work: Work) -> tuple[float, float]:
        """(bytes, multiply-adds) of the whole work: a prefill, whose matrices count once, or all decode steps."""
        tokens = work.context_tokens
        if work.kind == "prefill":
            keys = tokens * (tokens + 1) / 2
            macs = tokens * self.layer_weights + self.head_weights + keys * self.attention_macs_per_key
            return self.read_bytes + tokens * self.kv_bytes_per_token, macs
        keys = work.streams * sum(tokens + step + 1 for step in range(work.new_tokens))
        macs = work.tokens * (self.layer_weights + self.head_weights) + keys * self.attention_macs_per_key
        return work.new_tokens * self.read_bytes + keys * self.kv_bytes_per_token, macs

    def limit_tokens_per_s(self, work: Work, rates: Rates) -> tuple[float, str]:
        """The upper limit of any engine with these weights, and the rate that sets it: "read" or "compute"."""
        read_bytes, macs = self.bytes_and_macs(work)
        read_s = read_bytes / rates.read_bytes_per_s
        compute_s = macs / rates.macs_per_s if rates.macs_per_s else 0.0
        return work.tokens / max(read_s, compute_s), "read" if read_s >= compute_s else "compute"
