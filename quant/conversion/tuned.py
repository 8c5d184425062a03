"""Tunes the scales and norms of a calibrated model against the unquantized model's output distributions.

The state after every step is saved in the work folder, so that a conversion that was interrupted resumes with the next
step; the result is the same bit for bit. Does not know gradients (`calibration.tuning`), nor the packed file's order.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

from quant.calibration.block import block, block_shape, rms_norm
from quant.calibration.layers import embedded
from quant.calibration.tuning import Lesson, Parameters, Student, batches, tune_step
from quant.calibration.whole_layers import MATRICES
from quant.calibration.work_folder import WorkFolder
from quant.codes.matrix import F32, QuantizedMatrix
from quant.conversion.calibrated import Piece, gathered, kept_as_they_are, seen_rows
from quant.conversion.pieces import read_rows, read_whole
from quant.methods.grids import assembled, rounded_to_fp16
from quant.methods.problem import Rounding
from quant.packed.packed_matrix import MatrixInfo, pack_quantized, unpack_quantized, unpacked
from quant.sources.source import Source

TUNED: Final = "tuned"
CODES_SHARE: Final = 0.6
"""The share of the calibration windows that is used to choose codes; the rest is used for tuning."""
_CHUNK_WINDOWS: Final = 4
_ANSWERS: Final = "answers"
_KEPT_CODES: Final = 1 << 28
"""Codes, a byte each, that are kept unpacked between steps; the rest of a larger model is unpacked twice a step."""


def tuned_name(name: str) -> str:
    """A tuned tensor's name in the work folder."""
    return f"tuned.{name}"


def divided(ids: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Splits the windows into those for choosing codes and those for tuning.

    They differ, because the error on the windows that the codes were fitted to is much smaller than on other text.
    """
    kept = max(1, int(CODES_SHARE * len(ids)))
    return (ids[:kept], ids[kept:]) if kept < len(ids) else (ids, ids)


def tune(
    checkpoint: Source,
    infos: Mapping[str, MatrixInfo],
    vectors: Mapping[str, F32],
    ids: NDArray[np.int32],
    piece: Piece,
    work: WorkFolder,
    *,
    progress: bool,
) -> None:
    """Saves the tuned matrices' packed bytes, the norms and the biases in `work`, where `calibrate` has finished.

    ids: windows [windows, tokens], which should not be those that the codes were chosen with (`divided`).
    """
    layers = len(checkpoint.decoder.layers)
    names = [f"model.layers.{number}.{short}" for number in range(layers) for short in MATRICES]
    as_is = kept_as_they_are(checkpoint, infos)

    kept: dict[str, QuantizedMatrix] = {}

    def matrix(name: str) -> QuantizedMatrix:
        if name in kept:
            return kept[name]
        unpacked_codes = unpack_quantized(np.asarray(work.load(name)), infos[name])
        if sum(each.codes.size for each in kept.values()) + unpacked_codes.codes.size <= _KEPT_CODES:
            kept[name] = unpacked_codes
        return unpacked_codes

    def read(name: str) -> QuantizedMatrix | F32:
        return unpacked(np.asarray(work.load(name)), infos[name]) if name in as_is else matrix(name)

    free = [name for name in names if name not in as_is]
    parameters = Parameters({name: matrix(name).scales.astype(np.float32) for name in free}, vectors)
    student = Student(checkpoint.decoder, read, parameters)
    if not work.has(_ANSWERS):
        work.save(_ANSWERS, _answers(checkpoint, vectors, ids))
    lesson = _lesson(checkpoint, infos, ids, piece, np.asarray(work.load(_ANSWERS)))
    steps = batches(len(ids))
    first = work.steps_done - layers
    if first:
        parameters.state[:] = work.load(f"tuning-{first - 1}")
    bar = tqdm(range(first, len(steps)), "Tuning", len(steps), initial=first, unit="step", disable=not progress)
    for number in bar:
        loss = tune_step(student, lesson, number, steps)
        bar.set_postfix(divergence=f"{loss:.4f}")
        work.save(f"tuning-{number}", parameters.state)
        work.finish_step(layers + number)
        work.forget(f"tuning-{number - 1}")
    for name in free:
        codes, scales = matrix(name), rounded_to_fp16(parameters.value(name))
        minima = np.zeros_like(scales) if codes.minima is None else codes.minima.astype(np.float32)
        rounding = Rounding(codes.type, codes.group, codes.table)
        work.save(tuned_name(name), pack_quantized(assembled(rounding, codes.codes, scales, minima)))
    for name in vectors:
        work.save(tuned_name(name), parameters.value(name))


def _answers(checkpoint: Source, vectors: Mapping[str, F32], ids: NDArray[np.int32]) -> F32:
    """Returns the unquantized model's hidden states after its final norm, [windows, tokens, hidden]."""
    tensors, decoder = checkpoint.tensors, checkpoint.decoder
    table = tensors["model.embed_tokens.weight"]
    x = embedded(ids, lambda rows: gathered(rows, table.shape, lambda begin, end: read_rows(table, begin, end)))
    shape = block_shape(decoder, x.shape[1])
    for number in range(len(decoder.layers)):
        prefix = f"model.layers.{number}."
        weights = {name.removeprefix(prefix): values for name, values in vectors.items() if name.startswith(prefix)}
        weights |= {short: read_whole(tensors[prefix + short]) for short in MATRICES}
        for begin in range(0, len(x), _CHUNK_WINDOWS):
            x[begin : begin + _CHUNK_WINDOWS] = block(x[begin : begin + _CHUNK_WINDOWS], weights, shape)
    return rms_norm(x, vectors["model.norm.weight"], shape.epsilon)


def _lesson(
    checkpoint: Source, infos: Mapping[str, MatrixInfo], ids: NDArray[np.int32], piece: Piece, answers: F32
) -> Lesson:
    head = "lm_head.weight" if "lm_head.weight" in infos else "model.embed_tokens.weight"
    info = infos[head]
    return Lesson(
        embedded(ids, lambda rows: seen_rows(rows, infos, piece)),
        answers,
        read_whole(checkpoint.tensors[head]),
        unpacked(piece(head, info, 0, info.rows), info),
    )
