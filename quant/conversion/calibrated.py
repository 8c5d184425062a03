"""Quantizes every layer's matrices with calibration inputs, and keeps the results in a work folder.

Layers are quantized in order, and each finished one is saved, so that a conversion that was interrupted resumes with
the next layer; the result is the same bit for bit. Does not know the packed file's order, nor how a method works.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

from quant.calibration.block import BlockShape, Weights
from quant.calibration.layers import Chosen, LayerWork, Streams, embedded, run_layer
from quant.calibration.one_pass import run_layer_once
from quant.calibration.sign_round import STEPS, sign_round_layer
from quant.calibration.text import calibration_windows
from quant.calibration.whole_layers import MATRICES, run_whole_layer
from quant.calibration.work_folder import WorkFolder
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, U8
from quant.conversion.mixed import Option, Unit, allocate, layer_options
from quant.conversion.pieces import finite_rows, keeps, read_rows, read_whole
from quant.families.description import Decoder
from quant.families.names import EMBEDDING_PROJECTION, POSITIONS
from quant.methods.problem import MatrixProblem, Rounding, corrected
from quant.methods.registry import METHODS
from quant.packed.packed_matrix import MatrixInfo, pack_quantized, unpacked
from quant.sources.source import Source

FOUR_BIT: Final = ("sym_int4", "asym_int4", "lut4")
SIGN_ROUND: Final = "signround"
QUICK: Final = "quick"
QUICK_TOKENS: Final = 3072
"""Measured: docs/tuning.md."""
WINDOW_TOKENS: Final = 512
TOKENS_PER_INPUT: Final = 30
LEAST_TOKENS: Final = 1 << 14
MOST_VALUES: Final = 1 << 26
"""Most activations held between layers, per stream: 256 MiB of fp32, which is 16,384 tokens of a 7B model."""
SENSITIVITY_WINDOWS: Final = 4
SENSITIVITY_TOKENS: Final = 256
_EMBEDDING: Final = "model.embed_tokens.weight"
_READ_ROWS: Final = 1024

Piece = Callable[[str, MatrixInfo, int, int], U8]
"""(name, info, begin, end) -> packed rows, rounded to nearest or with the source's codes kept."""


def windows_for(
    decoder: Decoder, tokenizer_folder: Path, text: Path | None, share: float = 1.0, most_tokens: int | None = None
) -> NDArray[np.int32]:
    """Calibration windows for a model, int32 [windows, tokens].

    TOKENS_PER_INPUT tokens for each input of the widest matrix, at least LEAST_TOKENS and at most what MOST_VALUES
    activations hold, or most_tokens. share: the part of the windows that is used to choose codes; there are 1 / share
    times as many.
    """
    widest = max(decoder.widest_inner, decoder.hidden_size)
    tokens = min(WINDOW_TOKENS, decoder.max_positions)
    wanted = min(max(TOKENS_PER_INPUT * widest, LEAST_TOKENS), MOST_VALUES // decoder.hidden_size)
    wanted = wanted if most_tokens is None else min(wanted, most_tokens)
    return calibration_windows(tokenizer_folder, text, windows=max(1, int(wanted // tokens / share)), tokens=tokens)


def mixed_roundings(
    checkpoint: Source,
    infos: Mapping[str, MatrixInfo],
    vectors: Mapping[str, F32],
    ids: NDArray[np.int32],
    bits: float,
    *,
    progress: bool,
) -> dict[str, Rounding]:
    """The type and group of every matrix of the layers under a budget of bits per weight (`mixed`), by full name.

    Raises QuantError where the budget is too small.
    """
    decoder, options = checkpoint.decoder, dict[Unit, tuple[Option, ...]]()
    tensor = checkpoint.tensors[_EMBEDDING]
    few = ids[:SENSITIVITY_WINDOWS, :SENSITIVITY_TOKENS]
    x = embedded(few, lambda rows: gathered(rows, tensor.shape, lambda begin, end: read_rows(tensor, begin, end)))
    for number in tqdm(range(len(decoder.layers)), "Weighing", unit="layer", disable=not progress):
        base = infos[f"model.layers.{number}.mlp.down_proj.weight"]
        found, x = layer_options(
            number, decoder, vectors, lambda name: read_whole(checkpoint.tensors[name]), x, _rounding(base)
        )
        options |= found
    weights = sum(infos[name].rows * infos[name].cols for unit in options for name in unit)
    return allocate(options, weights, bits)


def calibrate(
    checkpoint: Source,
    infos: Mapping[str, MatrixInfo],
    vectors: Mapping[str, F32],
    method: str,
    ids: NDArray[np.int32],
    piece: Piece,
    work: WorkFolder,
    *,
    progress: bool,
) -> None:
    """Saves the packed bytes of every layer's matrices in `work`, under their names.

    ids: calibration windows [windows, tokens]. piece: packs a matrix for which no codes are chosen. Raises TensorError
    where weights are not finite.
    """
    layers = len(checkpoint.decoder.layers)
    names = ("exact",) if method == QUICK else ("exact", "seen")
    streams = _streams(checkpoint, infos, vectors, ids, piece, work, names)
    as_is = kept_as_they_are(checkpoint, infos)
    layer_work = LayerWork(
        infos=infos,
        vectors=vectors,
        read=lambda name, begin, end: finite_rows(checkpoint.tensors[name], begin, end),
        as_is=as_is,
        pack=lambda name: piece(name, infos[name], 0, infos[name].rows),
        choose=lambda chosen: _choose(chosen, _rounding(infos[chosen.name]), method),
        save=work.save,
    )

    def quantize_layer(prefix: str, weights: Weights, seen: Streams, shape: BlockShape) -> Mapping[str, F32]:
        return _sign_round(prefix, weights, infos, seen, shape, as_is, piece, work)

    def read(name: str) -> F32:
        return read_whole(checkpoint.tensors[name])

    numbers = range(work.steps_done, layers)
    for number in tqdm(numbers, "Calibrating", layers, initial=work.steps_done, unit="layer", disable=not progress):
        if method == SIGN_ROUND:
            run_whole_layer(number, checkpoint.decoder, vectors, read, quantize_layer, streams)
        elif method == QUICK:
            run_layer_once(number, checkpoint.decoder, layer_work, streams.exact)
        else:
            run_layer(number, checkpoint.decoder, layer_work, streams)
        for name in names:
            work.save(f"{name}-{number}", getattr(streams, name))
        work.finish_step(number)
        for name in names:
            work.forget(f"{name}-{number - 1}")


def kept_as_they_are(checkpoint: Source, infos: Mapping[str, MatrixInfo]) -> frozenset[str]:
    """The matrices for which no codes are chosen: their type has over 4 bits, or the source's codes are kept."""
    return frozenset(
        name for name, info in infos.items() if info.type not in FOUR_BIT or keeps(checkpoint.tensors[name], info)
    )


def seen_rows(rows: NDArray[np.intp], infos: Mapping[str, MatrixInfo], piece: Piece) -> F32:
    """Embedding rows of the quantized model, fp32 [len(rows), hidden]; `rows` is ascending."""
    info = infos[_EMBEDDING]

    def read(begin: int, end: int) -> F32:
        return unpacked(piece(_EMBEDDING, info, begin, end), info.of_rows(end - begin))

    return gathered(rows, (info.rows, info.cols), read)


def _streams(
    checkpoint: Source,
    infos: Mapping[str, MatrixInfo],
    vectors: Mapping[str, F32],
    ids: NDArray[np.int32],
    piece: Piece,
    work: WorkFolder,
    names: tuple[str, ...],
) -> Streams:
    """names: of the streams that are used; the quick method has no other than "exact"."""
    done = min(work.steps_done, len(checkpoint.decoder.layers))
    if done:
        kept = [np.array(work.load(f"{name}-{done - 1}")) for name in names]
        return Streams(kept[0], kept[-1])
    tensor = checkpoint.tensors[_EMBEDDING]

    def exact(rows: NDArray[np.intp]) -> F32:
        return gathered(rows, tensor.shape, lambda begin, end: read_rows(tensor, begin, end))

    found = [embedded(ids, exact)]
    if "seen" in names:
        found.append(embedded(ids, lambda rows: seen_rows(rows, infos, piece)))

    def read(name: str) -> F32:
        return read_whole(checkpoint.tensors[name])

    def packed(name: str) -> F32:
        return unpacked(piece(name, infos[name], 0, infos[name].rows), infos[name])

    matrices = (read, packed)[: len(found)]
    decoder = checkpoint.decoder
    entered = [entering(x, decoder, vectors, matrix) for x, matrix in zip(found, matrices, strict=True)]
    return Streams(entered[0], entered[-1])


def entering(x: F32, decoder: Decoder, vectors: Mapping[str, F32], matrix: Callable[[str], F32]) -> F32:
    """The first layer's input of embedding rows [windows, tokens, columns], which may be changed.

    matrix: a matrix by name, of those beside the embedding.
    """
    if decoder.embedding_scale != 1:
        x *= np.float32(decoder.embedding_scale)
    if decoder.embedding_size:
        x = x @ matrix(EMBEDDING_PROJECTION).T
    if decoder.learned_positions:
        x += matrix(POSITIONS)[: x.shape[1]]
    if decoder.embedding_norm:
        _normalize(x, decoder, vectors)
    return x


def _normalize(x: F32, decoder: Decoder, vectors: Mapping[str, F32]) -> None:
    weight, bias = (vectors.get(f"model.embed_norm.{name}") for name in ("weight", "bias"))
    assert weight is not None
    for window in x:
        if decoder.norm == "layer":
            window -= window.mean(-1, keepdims=True)
        window /= np.sqrt(np.square(window).mean(-1, keepdims=True) + np.float32(decoder.norm_epsilon))
        window *= weight
        window += np.float32(0) if bias is None else bias


def gathered(rows: NDArray[np.intp], shape: tuple[int, ...], read: Callable[[int, int], F32]) -> F32:
    """Rows of a matrix of that shape, read _READ_ROWS rows at a time; `rows` is ascending."""
    result = np.empty((len(rows), shape[1]), np.float32)
    for begin in range(0, shape[0], _READ_ROWS):
        end = min(begin + _READ_ROWS, shape[0])
        first, last = np.searchsorted(rows, [begin, end])
        if first < last:
            result[first:last] = read(begin, end)[rows[first:last] - begin]
    return result


def _choose(chosen: Chosen, rounding: Rounding, method: str) -> U8:
    weights = chosen.weights
    if chosen.missing is not None:
        weights = corrected(weights, chosen.moments, chosen.missing)
    return pack_quantized(METHODS[method](MatrixProblem(chosen.name, weights, rounding, chosen.moments)))


def _sign_round(
    prefix: str,
    weights: Weights,
    infos: Mapping[str, MatrixInfo],
    streams: Streams,
    shape: BlockShape,
    as_is: frozenset[str],
    piece: Piece,
    work: WorkFolder,
) -> dict[str, F32]:
    """Quantizes a layer's matrices together; those in `as_is` are rounded to nearest or keep the source's codes."""
    results, roundings = {}, {}
    for name in MATRICES:
        info = infos[prefix + name]
        if prefix + name in as_is:
            packed = piece(prefix + name, info, 0, info.rows)
            work.save(prefix + name, packed)
            results[name] = unpacked(packed, info)
        else:
            roundings[name] = _rounding(info)
    tuned = sign_round_layer({**weights, **results}, roundings, streams.seen, streams.exact, shape, STEPS)
    for name, matrix in tuned.items():
        work.save(prefix + name, pack_quantized(matrix))
        results[name] = dequantize(matrix)
    return results


def _rounding(info: MatrixInfo) -> Rounding:
    assert info.type in ("sym_int4", "asym_int4", "lut4")
    return Rounding(info.type, info.group, info.table)
