"""After a calibration: the scales and norms of the whole model tuned by the unquantized model's answers, step by step.

What every step leaves is kept in the work folder, so that a conversion that was killed goes on with the next; the
result is the same bit for bit. Does not know gradients (`calibration.tuning`), nor the packed file's order.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

from quant.calibration.block import block, block_shape, rms_norm
from quant.calibration.layers import MATRICES, embedded
from quant.calibration.tuning import Lesson, Parameters, Student, batches, tune_step
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
"""Of the windows, that codes are chosen by; the rest are to tune by."""
_CHUNK_WINDOWS: Final = 4
_ANSWERS: Final = "answers"
_KEPT_CODES: Final = 1 << 28
"""Codes, a byte each, that stay unpacked between steps; of larger models the rest is unpacked twice a step."""


def tuned_name(name: str) -> str:
    """What a tensor that was tuned is called in the work folder."""
    return f"tuned.{name}"


def divided(ids: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Windows to choose codes by, and those to tune by: where codes were chosen they are too good to learn from.

    Embedded model, 46,080 tokens for the codes: error of the last layer's output relative to its square, of those
    tokens 0.010, of other windows of the same text 0.017.
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
    """Leaves in `work`, where `calibrate` has finished, the tuned matrices' packed bytes and the norms and biases.

    ids: windows [windows, tokens], better others than the codes were chosen by (`divided`).
    """
    layers = int(checkpoint.config["num_hidden_layers"])
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
    student = Student(checkpoint.config, read, parameters)
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
    """The unquantized model's states after its final norm, [windows, tokens, hidden]."""
    tensors, config = checkpoint.tensors, checkpoint.config
    table = tensors["model.embed_tokens.weight"]
    x = embedded(ids, lambda rows: gathered(rows, table.shape, lambda begin, end: read_rows(table, begin, end)))
    shape = block_shape(config, x.shape[1])
    for number in range(int(config["num_hidden_layers"])):
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
