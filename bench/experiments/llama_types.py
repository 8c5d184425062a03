"""Measures the quality of llama.cpp's 4-bit types, each with an importance matrix from our calibration text.

    python -m bench.experiments.llama_types GGUF --text FILE --windows N --work FOLDER [--dither SEED] [--ours FOLDER]

An importance matrix is the mean square of every input of every matrix, as llama.cpp's own tool measures it, here on the
windows that `redoubt convert` calibrates with. llama.cpp (bench/peers) quantizes with it and dequantizes the result;
one engine evaluates all results with fp32 activations, keys and values, so that only the rounding of weights differs.
With --dither every 4-bit weight of the source is moved by up to a quarter step, so that it no longer lies on the grid;
to compare, convert float.gguf, which is then in the work folder.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.common import commit
from bench.eval.journal import Journal
from bench.eval.open_model import ModelOptions, open_model
from bench.eval.perplexity import perplexity
from bench.eval.text_windows import read_text, text_windows
from bench.peers.llama_cpp import PEER
from quant.calibration.block import block, block_shape
from quant.calibration.layers import embedded
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, QuantizedMatrix
from quant.conversion.calibrated import windows_for
from quant.conversion.mixed import UNITS, input_powers
from quant.conversion.pieces import read_whole
from quant.files.cache_folder import file_state
from quant.files.json_file import write_json
from quant.sources.gguf_file import GgufFile, read_gguf
from quant.sources.gguf_tensors import gguf_tensors
from quant.sources.open_source import open_source
from quant.sources.source import Source

TYPES: Final = ("Q4_0", "IQ4_NL", "IQ4_XS", "Q4_K_S")
DITHER_STEPS: Final = 0.25
_EXACT: Final = ModelOptions(None, "fp32", "fp32")
_CHUNK_WINDOWS: Final = 4
_EMBEDDING: Final = "model.embed_tokens.weight"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; prints the result and writes it to --out."""
    parser = argparse.ArgumentParser(description="llama.cpp's 4-bit types with importance matrices, beside ours.")
    parser.add_argument("source", type=Path, metavar="GGUF")
    parser.add_argument("--text", type=Path, required=True, help="what perplexity is measured on")
    parser.add_argument("--windows", type=int, required=True, help="of 512 tokens")
    parser.add_argument("--calibrate", type=Path, help="another text for the importance matrix than the one that ships")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--dither", type=int, metavar="SEED")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--plain", action="store_true", help="each type without an importance matrix, too")
    parser.add_argument("--ours", type=Path, nargs="*", default=[], help="converted folders of the same weights")
    parser.add_argument("--environments", type=Path, default=Path("build/peers"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    PEER.install(options.environments)
    result = measured(options)
    print(json.dumps(result, indent=1))
    if options.out is not None:
        write_json(options.out, result)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measures all types; files that exist in the work folder are reused."""
    exact = options.work / "float.gguf"
    if not exact.exists():
        _quantized(options, options.source, exact, "F32", None)
        if options.dither is not None:
            dither(options.source, exact, options.dither)
    importance = options.work / "importance.npz"
    if not importance.exists():
        _write_importance(exact, importance, options)
    baseline = _perplexity(exact, options)
    rows = []
    for kind in options.types.split(","):
        for matrix in (importance, None) if options.plain else (importance,):
            name = kind if matrix is None else f"{kind}-imatrix"
            rounded, floats = options.work / f"{name}.gguf", options.work / "rounded.gguf"
            if not rounded.exists():
                _quantized(options, exact, rounded, kind, matrix)
            _quantized(options, rounded, floats, "F32", None)
            facts = {"type": kind, "imatrix": matrix is not None, "bits_layers": layer_bits(read_gguf(rounded))}
            facts |= {"size_bytes": rounded.stat().st_size, "tensor_types": _tensor_types(read_gguf(rounded))}
            rows.append(facts | _perplexity(floats, options, rounded))
            floats.unlink()
    ours = [{"folder": folder.name} | _perplexity(folder, options) for folder in options.ours]
    for row in (*rows, *ours):
        row["increase"] = row["perplexity"] / baseline["perplexity"] - 1
    return {
        "model": options.source.name,
        "dither_seed": options.dither,
        "dither_steps": None if options.dither is None else DITHER_STEPS,
        "text": options.text.name,
        "windows": options.windows,
        "peer": " ".join(PEER.steps[-1]),
        "commit": commit(),
        "unquantized": baseline,
        "llama_cpp": rows,
        "ours": ours,
    }


def dither(source: Path, floats: Path, seed: int) -> None:
    """Moves every weight that the source has in 4 bits by a uniform random part of its group's step, in place."""
    generator = np.random.default_rng(seed)
    checkpoint, target = open_source(source), read_gguf(floats)
    stored = gguf_tensors(target.metadata["general.architecture"], checkpoint.decoder)
    for name, tensor in checkpoint.tensors.items():
        values = tensor.read(0, tensor.shape[0])
        if not isinstance(values, QuantizedMatrix) or not values.type.endswith("int4"):
            continue
        step = np.abs(np.repeat(values.scales.astype(np.float32), values.group, axis=1))
        moved = generator.uniform(-DITHER_STEPS, DITHER_STEPS, tensor.shape).astype(np.float32) * step
        moved += dequantize(values)
        (piece,) = stored[name].pieces
        place = target.tensors[piece.name]
        assert place.type_name == "F32", place
        rows = np.memmap(floats, np.float32, "r+", place.offset, tensor.shape)
        rows[piece.rows if piece.rows is not None else slice(None)] = moved
        rows.flush()


def importance_matrix(checkpoint: Source, ids: np.ndarray[Any, np.dtype[np.int32]]) -> Iterator[tuple[str, F32]]:
    """Mean square of the inputs of every matrix of the layers over calibration windows, by Hugging Face's names."""
    decoder = checkpoint.decoder
    table = read_whole(checkpoint.tensors[_EMBEDDING])
    x = embedded(ids, lambda rows: table[rows])
    shape = block_shape(decoder, x.shape[1])
    for number in range(len(decoder.layers)):
        prefix = f"model.layers.{number}."
        weights = {
            name.removeprefix(prefix): read_whole(tensor)
            for name, tensor in checkpoint.tensors.items()
            if name.startswith(prefix)
        }
        sums: list[F32] = []
        for begin in range(0, len(x), _CHUNK_WINDOWS):
            part = x[begin : begin + _CHUNK_WINDOWS]
            share = np.float32(len(part) / len(x))
            powers = input_powers(part, weights, shape)
            sums = [share * power + (sums[i] if sums else 0) for i, power in enumerate(powers)]
            x[begin : begin + _CHUNK_WINDOWS] = block(part, weights, shape)
        for unit, power in zip(UNITS, sums, strict=True):
            yield from ((f"{prefix}{name}.weight", power) for name in unit)


def layer_bits(gguf: GgufFile) -> float:
    """The mean bits of a weight of the layers' matrices."""
    layers = [each for name, each in gguf.tensors.items() if name.startswith("blk.") and len(each.shape) == 2]
    bits = sum(8 * each.row_bytes * each.shape[0] for each in layers)
    return bits / sum(each.shape[0] * each.shape[1] for each in layers)


def _tensor_types(gguf: GgufFile) -> Mapping[str, int]:
    kinds = [each.type_name for each in gguf.tensors.values() if len(each.shape) == 2]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _write_importance(exact: Path, out: Path, options: argparse.Namespace) -> None:
    checkpoint, gguf = open_source(exact), read_gguf(exact)
    folder = options.work / "tokenizer"
    folder.mkdir(exist_ok=True)
    checkpoint.write_tokenizer(folder)
    ids = windows_for(checkpoint.decoder, folder, options.calibrate)
    stored = gguf_tensors(gguf.metadata["general.architecture"], checkpoint.decoder)
    powers: dict[str, Any] = {stored[name].pieces[0].name: power for name, power in importance_matrix(checkpoint, ids)}
    np.savez(out, **powers)


def _quantized(options: argparse.Namespace, source: Path, out: Path, kind: str, imatrix: Path | None) -> None:
    python = PEER.python(options.environments).absolute()
    command = [str(python), "-m", "bench.experiments.llama_cpp_quantize", str(source), str(out), kind]
    if imatrix is not None:
        command += ["--imatrix", str(imatrix)]
    partial = out.with_suffix(".partial")
    command[4] = str(partial)
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{out}: {finished.stderr.strip().splitlines()[-1]}")
    partial.rename(out)


def _perplexity(path: Path, options: argparse.Namespace, state: Path | None = None) -> dict[str, Any]:
    """state: the file that the result depends on, if `path` is written anew each time."""
    text = read_text(options.text)
    run = ["llama-types", file_state((state or path).resolve()), options.text.name, len(text), options.windows]
    journal = Journal(run, options.work / "journal")
    with open_model(path, _EXACT, progress=False) as opened:
        windows = text_windows(opened.tokenizer(), text, options.text, 512, options.windows)
        with opened.load(512) as model:
            return perplexity(model, windows, journal, "", lambda: None)


if __name__ == "__main__":
    main()
