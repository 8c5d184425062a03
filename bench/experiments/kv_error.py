"""Measures the error of rounding keys and values: integers and FP8 with a scale per token and head, others, and bf16.

A NumPy forward pass of a Llama (the packed file's weights, everything else in fp32) rounds its keys and values with
each scheme, over windows of a text. By scheme: the relative error of keys, values and attention outputs (root mean
square over layers, with unrounded inputs), the mean KL divergence from the pass with exact keys and values, in nats a
token, and the change of perplexity. Then the last two for the native engine's own pages. Does not measure speed.

    python -m bench.experiments.kv_error models/smollm2-135m-instruct text.txt --json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kernels import _native
from quant.codes.bf16 import bf16_to_fp32, fp32_to_bf16
from quant.packed.packed_file import PackedFile

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
INT16_LARGEST = 4079
"""kernels/contract/attention.h, largest_code"""
_E4M3_LARGEST, _E4M3_LEAST_EXPONENT = 448, -6
Rounding = Callable[[F32], F32]
"""Keys or values of one layer [tokens, kv_heads, head_dim] -> the same, rounded."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The effect of rounding keys and values on the output of a whole forward pass."""

    mean_kl: float
    p99_kl: float
    perplexity: float
    perplexity_change: float
    """Relative to exact keys and values."""


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Relative errors with exact inputs."""

    keys: float
    values: float
    attention: float
    worst_layer_attention: float


def to_bf16(x: F32) -> F32:
    """Rounded to nearest even, as fp32."""
    return bf16_to_fp32(fp32_to_bf16(x))


def to_integers(x: F32, axes: tuple[int, ...], largest: int = 127) -> F32:
    """Rounded to integers, int8 by default, with one scale (kept as bf16) over these axes."""
    scale = to_bf16(np.abs(x).max(axes, keepdims=True) / np.float32(largest))
    return np.rint(x / np.where(scale == 0, np.float32(1), scale)) * scale


def to_e4m3(x: F32, axes: tuple[int, ...]) -> F32:
    """Rounded to FP8 E4M3 (3 bits of fraction, smallest exponent -6, largest value 448), scaled as int8 is."""
    scale = to_bf16(np.abs(x).max(axes, keepdims=True) / np.float32(_E4M3_LARGEST))
    scaled = x / np.where(scale == 0, np.float32(1), scale)
    exponent = np.maximum(np.frexp(scaled)[1] - 1, _E4M3_LEAST_EXPONENT)
    step = np.ldexp(np.float32(1), exponent - 3)
    rounded = np.clip(np.rint(scaled / step) * step, -_E4M3_LARGEST, _E4M3_LARGEST)
    return np.asarray(rounded * scale, np.float32)


SCHEMES: Mapping[str, Rounding] = {
    "bf16": to_bf16,
    "int16 per token and head": lambda x: to_integers(x, (2,), INT16_LARGEST),
    "int8 per token and head": lambda x: to_integers(x, (2,)),
    "FP8 E4M3 per token and head": lambda x: to_e4m3(x, (2,)),
    "int8 per token": lambda x: to_integers(x, (1, 2)),
    "int8 per head": lambda x: to_integers(x, (0, 2)),
    "int8 per tensor": lambda x: to_integers(x, (0, 1, 2)),
}


class NumpyLlama:
    """A Llama's forward pass over one window, with a hook where keys and values are stored."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if self.config["model_type"] != "llama" or self.config.get("rope_scaling"):
            raise ValueError(f"{folder}: not a Llama with plain rotary embedding")
        packed = PackedFile(folder / "model.safetensors")
        self.weights = {name: packed.dequantize(name) for name in packed.matrices}
        self.weights |= {name: packed.vector(name) for name in packed.vectors}
        self.heads = int(self.config["num_attention_heads"])
        self.kv_heads = int(self.config["num_key_value_heads"])
        self.head_dim = int(self.config["hidden_size"]) // self.heads

    def layer(self, number: int, name: str) -> F32:
        return self.weights[f"model.layers.{number}.{name}.weight"]

    def norm(self, x: F32, weight: F32) -> F32:
        scale = np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(self.config["rms_norm_eps"]))
        return np.asarray(x / scale * weight)

    def rotated(self, x: F32) -> F32:
        """Rotary embedding of [tokens, heads, head_dim], positions from 0 on."""
        half = self.head_dim // 2
        frequencies = float(self.config["rope_theta"]) ** (-np.arange(half) / half)
        angles = np.arange(len(x))[:, None, None] * frequencies
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def attend(self, queries: F32, keys: F32, values: F32) -> F32:
        """Causal attention: queries [tokens, heads, head_dim] -> the same."""
        group = self.heads // self.kv_heads
        future = np.triu(np.full((len(queries), len(queries)), -np.inf, np.float32), 1)
        outputs = np.empty_like(queries)
        for head in range(self.heads):
            scores = queries[:, head] @ keys[:, head // group].T / np.float32(self.head_dim**0.5) + future
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            outputs[:, head] = weights / weights.sum(-1, keepdims=True) @ values[:, head // group]
        return outputs

    def run(self, ids: list[int], rounding: Rounding | None) -> tuple[F32, list[tuple[F32, F32, F32]]]:
        """Logits [tokens, vocab], and each layer's queries, keys and values before rounding."""
        x = self.weights["model.embed_tokens.weight"][ids]
        seen = []
        for i in range(self.config["num_hidden_layers"]):
            h = self.norm(x, self.layer(i, "input_layernorm"))
            q, k, v = (
                (h @ self.layer(i, f"self_attn.{name}_proj").T).reshape(len(ids), -1, self.head_dim) for name in "qkv"
            )
            q, k = self.rotated(q), self.rotated(k)
            seen.append((q, k, v))
            attended = self.attend(q, *((rounding(k), rounding(v)) if rounding else (k, v)))
            x = x + attended.reshape(len(ids), -1) @ self.layer(i, "self_attn.o_proj").T
            h = self.norm(x, self.layer(i, "post_attention_layernorm"))
            gate = h @ self.layer(i, "mlp.gate_proj").T
            x = (
                x
                + (gate / (1 + np.exp(-gate)) * (h @ self.layer(i, "mlp.up_proj").T)) @ self.layer(i, "mlp.down_proj").T
            )
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return np.asarray(self.norm(x, self.weights["model.norm.weight"]) @ head.T), seen

    def rounding_errors(self, layers: list[tuple[F32, F32, F32]], rounding: Rounding) -> F64:
        """[layers, 3]: squared relative errors of keys, values, attention outputs."""
        errors = []
        for q, k, v in layers:
            exact, rounded = self.attend(q, k, v), self.attend(q, rounding(k), rounding(v))
            errors.append([_relative(rounding(k), k), _relative(rounding(v), v), _relative(rounded, exact)])
        return np.square(errors)


def _relative(ours: F32, truth: F32) -> float:
    return float(np.linalg.norm(ours - truth) / np.linalg.norm(truth))


class LossMeter:
    """Accumulates the loss of windows."""

    def __init__(self) -> None:
        self._kl: list[F64] = []
        self._nll: list[F64] = []
        self._exact_nll: list[F64] = []

    def add(self, ids: list[int], exact_logits: F32, logits: F32) -> None:
        """One window's logits [tokens, vocab]."""
        exact, ours = _log_softmax(exact_logits), _log_softmax(logits)
        self._kl.append((np.exp(exact) * (exact - ours)).sum(-1))
        rows, following = np.arange(len(ids) - 1), np.array(ids[1:])
        self._exact_nll.append(-exact[rows, following])
        self._nll.append(-ours[rows, following])

    def loss(self) -> Loss:
        kl, nll = np.concatenate(self._kl), float(np.mean(self._nll))
        change = float(np.exp(nll - np.mean(self._exact_nll))) - 1
        return Loss(float(kl.mean()), float(np.percentile(kl, 99)), float(np.exp(nll)), change)


def _log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def numpy_report(model: NumpyLlama, windows: list[list[int]]) -> Iterator[tuple[str, RoundingError, Loss]]:
    """Each scheme's errors and loss."""
    exact = [model.run(ids, None) for ids in windows]
    for name, rounding in SCHEMES.items():
        meter, errors = LossMeter(), []
        for ids, (logits, layers) in zip(windows, exact, strict=True):
            meter.add(ids, logits, model.run(ids, rounding)[0])
            errors.append(model.rounding_errors(layers, rounding))
        by_layer = np.mean(errors, 0)
        keys, values, attention = np.sqrt(by_layer.mean(0))
        yield name, RoundingError(keys, values, attention, float(np.sqrt(by_layer[:, 2].max()))), meter.loss()


def key_outliers(layers: list[tuple[F32, F32, F32]]) -> list[float]:
    """Per layer: the largest root mean square of a key channel over that of all channels; 1 if all are equal."""
    channels = [np.sqrt((k * k).mean(0)) for _, k, _ in layers]
    return [float((channel.max(-1) / np.sqrt((channel**2).mean(-1))).max()) for channel in channels]


def engine_report(folder: Path, windows: list[list[int]], compute_type: str) -> Iterator[tuple[str, Loss]]:
    """The loss of the engine's own pages, relative to its fp32 pages."""
    exact = [engine_logits(folder, ids, "fp32", compute_type) for ids in windows]
    for kv_type in ("bf16", "int16", "int8"):
        meter = LossMeter()
        for ids, logits in zip(windows, exact, strict=True):
            meter.add(ids, logits, engine_logits(folder, ids, kv_type, compute_type))
        yield kv_type, meter.loss()


def engine_logits(folder: Path, ids: list[int], kv_type: str, compute_type: str) -> F32:
    """One window's logits [tokens, vocab]."""
    pages = -(-len(ids) // _native.PAGE_TOKENS)
    model = _native.Model(
        str(folder),
        threads=2,
        compute_type=compute_type,
        kv_type=kv_type,
        kv_pages=pages,
        max_sequences=1,
        max_step_tokens=len(ids),
        max_context_tokens=len(ids),
    )
    model.page_table[0, :] = np.arange(pages, dtype=np.int32)
    slot, length, context = (np.array([value], np.int32) for value in (0, len(ids), 0))
    return model.logits(np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32), slot, length, context)


def main() -> None:
    """Prints a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a converted model")
    parser.add_argument("text", type=Path, help="a text; the windows are taken from its beginning")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of one window (default %(default)s)")
    parser.add_argument("--compute-type", default="fp32", choices=("fp32", "int8"), help="of the engine")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()

    text = arguments.text.read_text(encoding="utf-8")[: arguments.windows * arguments.tokens * 12]
    ids = Tokenizer.from_file(str(arguments.model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    windows = [ids[i * arguments.tokens : (i + 1) * arguments.tokens] for i in range(arguments.windows)]
    if len(windows[-1]) < arguments.tokens:
        parser.error(f"{arguments.text}: too short for the windows")

    model = NumpyLlama(arguments.model)
    report: dict[str, Any] = {
        "model": arguments.model.name,
        "text": arguments.text.name,
        "windows": arguments.windows,
        "tokens": arguments.tokens,
        "key_outliers_by_layer": key_outliers(model.run(windows[0], None)[1]),
        "schemes": {},
        "engine": {},
    }
    for name, error, loss in numpy_report(model, windows):
        report["schemes"][name] = asdict(error) | asdict(loss)
        if not arguments.json:
            print(
                f"{name:24} keys {error.keys:.3%}  values {error.values:.3%}  attention {error.attention:.3%} "
                f"(worst layer {error.worst_layer_attention:.3%})  KL {loss.mean_kl:.2e}  "
                f"perplexity {loss.perplexity:.4f} ({loss.perplexity_change:+.3%})",
                flush=True,
            )
    for name, loss in engine_report(arguments.model, windows, arguments.compute_type):
        report["engine"][name] = asdict(loss) | {"compute_type": arguments.compute_type}
        if not arguments.json:
            change = f"{loss.perplexity_change:+.3%}"
            print(f"engine, {name:16} KL {loss.mean_kl:.2e}  perplexity {loss.perplexity:.4f} ({change})")
    if arguments.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print(
            "largest key channel over the mean one, by layer:", *(f"{x:.1f}" for x in report["key_outliers_by_layer"])
        )


if __name__ == "__main__":
    main()
