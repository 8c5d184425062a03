"""The gradients of the whole model's divergence against differences, and that steps make it smaller."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from quant.calibration.block import block, block_shape, rms_norm
from quant.calibration.tuning import Lesson, Parameters, Student, batches, loss_and_gradients, tune_step
from quant.calibration.whole_layers import MATRICES
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, IntegerType, QuantizedMatrix
from quant.families.description import Decoder
from quant.families.names import engine_tensors
from quant.families.registry import describe
from quant.methods.problem import MatrixProblem
from quant.methods.rounding import round_to_nearest
from tests.kernels.tiny_model import LLAMA, random_tensors
from tests.quant.methods.problems import rounding

WINDOWS, TOKENS = 6, 12
QWEN = {**LLAMA, "model_type": "qwen3", "head_dim": 32}
INT8 = "model.layers.1.mlp.down_proj.weight"


def answers(decoder: Decoder, tensors: Mapping[str, F32], embedded: F32) -> F32:
    shape = block_shape(decoder, TOKENS)
    x = embedded
    for number in range(len(decoder.layers)):
        prefix = f"model.layers.{number}."
        x = block(x, {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}, shape)
    return rms_norm(x, tensors["model.norm.weight"], shape.epsilon)


def student_and_lesson(raw: Mapping[str, Any], kind: IntegerType = "sym_int4") -> tuple[Student, Lesson]:
    """A model whose layers are rounded, one matrix to int8, and the original's answers."""
    decoder = describe(raw, "test")
    tensors = random_tensors(raw)
    matrices: dict[str, QuantizedMatrix] = {}
    for name in (f"model.layers.{number}.{short}" for number in range(2) for short in MATRICES):
        chosen: IntegerType = "int8" if name == INT8 else kind
        matrices[name] = round_to_nearest(MatrixProblem(name, tensors[name], rounding(chosen, 32)))
    scales = {name: each.scales.astype(np.float32) for name, each in matrices.items() if name != INT8}
    vectors = {name: tensors[name] for name, each in engine_tensors(decoder).items() if each.role == "vector"}
    ids = np.random.default_rng(0).integers(0, decoder.vocab_size, (WINDOWS, TOKENS))
    embedded = tensors["model.embed_tokens.weight"][ids]
    head = tensors["lm_head.weight"]
    student = Student(decoder, lambda name: matrices[name], Parameters(scales, vectors))
    return student, Lesson(embedded, answers(decoder, tensors, embedded), head, head)


def test_the_loss_is_that_of_the_values() -> None:
    student, lesson = student_and_lesson(LLAMA)
    tensors = random_tensors(LLAMA)
    rounded = {**tensors}
    for name in tensors:
        if name.endswith("_proj.weight"):
            matrix = student.read(name)
            assert isinstance(matrix, QuantizedMatrix)
            rounded[name] = dequantize(matrix)
    given = answers(student.decoder, rounded, lesson.embedded).astype(np.float64) @ lesson.head.T
    wanted = lesson.hidden.astype(np.float64) @ lesson.head.T
    given -= np.log(np.exp(given).sum(-1, keepdims=True))
    wanted -= np.log(np.exp(wanted).sum(-1, keepdims=True))
    divergence = float((np.exp(wanted) * (wanted - given)).sum(-1).mean())
    loss, _ = loss_and_gradients(student, lesson, np.arange(WINDOWS))
    assert loss == pytest.approx(divergence, rel=1e-3)
    assert loss > 0.001


@pytest.mark.parametrize(("raw", "kind"), [(LLAMA, "sym_int4"), (QWEN, "asym_int4"), (LLAMA, "lut4")])
def test_gradients_are_the_differences(raw: Mapping[str, Any], kind: IntegerType) -> None:
    student, lesson = student_and_lesson(raw, kind)
    part = np.array([0, 2])
    _, gradients = loss_and_gradients(student, lesson, part)
    assert INT8 not in gradients
    names = {f"model.layers.{number}.{short}" for number in range(2) for short in MATRICES} - {INT8}
    assert names < set(gradients)
    assert "model.norm.weight" in gradients
    generator = np.random.default_rng(1)
    parameters = student.parameters
    for name, gradient in gradients.items():
        slope = gradient * parameters.sizes[name]
        direction = generator.standard_normal(slope.shape).astype(np.float32)
        direction += slope / np.linalg.norm(slope) * np.float32(np.sqrt(slope.size))  # well above rounding
        change, losses = parameters.change(name), []
        for step in (1e-3, -1e-3):
            change[:] = np.float32(step) * direction
            losses.append(loss_and_gradients(student, lesson, part)[0])
        change[:] = 0
        expected = float((slope * direction).sum())
        assert abs((losses[0] - losses[1]) / 2e-3 - expected) < 0.03 * abs(expected) + 2e-4, name


def test_steps_go_down() -> None:
    student, lesson = student_and_lesson(LLAMA)
    everything = np.arange(WINDOWS)
    before, _ = loss_and_gradients(student, lesson, everything)
    steps = [np.array([i % WINDOWS, (i + 1) % WINDOWS]) for i in range(20)]
    for number in range(len(steps)):
        tune_step(student, lesson, number, steps)
    after, _ = loss_and_gradients(student, lesson, everything)
    assert after < 0.8 * before


def test_every_window_comes_once() -> None:
    assert sorted(np.concatenate(batches(8))) == list(range(8))
    assert [len(batch) for batch in batches(11)] == [4, 4]
    assert [len(batch) for batch in batches(3)] == [3]
    assert all(np.array_equal(a, b) for a, b in zip(batches(8), batches(8), strict=True))
