"""Tunes the scales and norms of a quantized model, so that its output distribution is nearest to the original's.

The codes do not change. The loss is the KL divergence of the quantized model's next-token distribution from the
original one's, over calibration windows. Gradients run back through the whole model (`block.block_gradients`), whose
matrices are read layer by layer, twice a step. Sources: Kim et al. 2023, "PEQA"; Chen et al. 2024, "EfficientQAT"; the
optimizer is Adam (Kingma and Ba 2014). Does not know how codes were chosen, nor files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quant.calibration.block import BlockShape, block, block_gradients, block_shape, norm_gradients, rms_norm
from quant.calibration.whole_layers import MATRICES
from quant.codes.dequantize import dequantize
from quant.codes.matrix import F32, QuantizedMatrix
from quant.families.description import Decoder
from quant.methods.grids import grid_of
from quant.methods.problem import Rounding

BATCH_WINDOWS: Final = 4
STEP: Final = 2e-3
"""The largest step size, relative to a scale or to the mean magnitude of a norm's weights."""
_WARM_STEPS: Final = 3
_DECAYS: Final = (0.9, 0.99)  # decay rates of Adam's two means
_LOGIT_TOKENS: Final = 256  # tokens whose logits are held at once
_FINAL_NORM: Final = "model.norm.weight"
_SEED: Final = 0

ReadMatrix = Callable[[str], QuantizedMatrix | F32]
"""(full name) -> a matrix of a layer; one whose scales are not tuned may be floats."""


class Parameters:
    """All tuned values as one fp32 vector of relative changes, zero at first: value = base + size * change."""

    def __init__(self, scales: Mapping[str, F32], vectors: Mapping[str, F32]) -> None:
        """scales: [rows, groups] by matrix. vectors: norms and biases."""
        self._base, self._vectors = {**scales, **vectors}, tuple(vectors)
        self.sizes = {name: np.abs(values) for name, values in scales.items()}
        self.sizes |= {name: np.abs(values).mean() * np.ones_like(values) for name, values in vectors.items()}
        ends = np.cumsum([values.size for values in self._base.values()])
        self._parts = {
            name: slice(int(end) - values.size, int(end))
            for (name, values), end in zip(self._base.items(), ends, strict=True)
        }
        self.state = np.zeros((3, int(ends[-1])), np.float32)
        """fp32 [3, parameters]: changes, and Adam's means of the gradients and of their squares."""

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def vectors_of(self, prefix: str) -> list[str]:
        """The short names of a layer's norms and biases."""
        return [name.removeprefix(prefix) for name in self._vectors if name.startswith(prefix)]

    def change(self, name: str) -> F32:
        """Returns a tensor's relative changes as a view."""
        return self.state[0, self._parts[name]].reshape(self._base[name].shape)

    def value(self, name: str) -> F32:
        """A tensor with its current change."""
        return np.asarray(self._base[name] + self.sizes[name] * self.change(name), np.float32)

    def step(self, gradients: Mapping[str, F32], number: int, size: float) -> None:
        """Does Adam's step `number`, counted from 0. gradients: of the values, by name."""
        gradient = np.empty_like(self.state[0])
        for name, part in self._parts.items():
            gradient[part] = (gradients[name] * self.sizes[name]).reshape(-1)
        change, mean, square = self.state
        for total, values, decay in ((mean, gradient, _DECAYS[0]), (square, gradient * gradient, _DECAYS[1])):
            total *= np.float32(decay)
            total += np.float32(1 - decay) * values
        first, second = (1 - decay ** (number + 1) for decay in _DECAYS)
        change -= np.float32(size / first) * mean / (np.sqrt(square / np.float32(second)) + np.float32(1e-20))


@dataclass(frozen=True, slots=True)
class Lesson:
    """The tuning windows: the quantized model's inputs and the original's outputs, [windows, tokens, hidden] each.

    embedded: the quantized model's embedding rows. hidden: the original's hidden states after its final norm, whose
    logits are the product with teacher_head [vocabulary, hidden]; head is the quantized model's.
    """

    embedded: F32
    hidden: F32
    teacher_head: F32
    head: F32


@dataclass(frozen=True, slots=True)
class Student:
    """The model being tuned."""

    decoder: Decoder
    read: ReadMatrix
    parameters: Parameters


def batches(windows: int) -> list[NDArray[np.intp]]:
    """Splits the windows into steps, deterministically, each window once."""
    order = np.random.Generator(np.random.PCG64(_SEED)).permutation(windows)
    size = min(BATCH_WINDOWS, windows)
    return [np.sort(order[begin : begin + size]) for begin in range(0, windows - windows % size, size)]


def tune_step(student: Student, lesson: Lesson, number: int, steps: list[NDArray[np.intp]]) -> float:
    """Does step `number` of `steps`; returns its batch's divergence before the step, in nats per token."""
    loss, gradients = loss_and_gradients(student, lesson, steps[number])
    share = 0.5 * (1 + np.cos(np.pi * number / len(steps))) * min(1.0, (number + 1) / _WARM_STEPS)
    student.parameters.step(gradients, number, STEP * float(share))
    return loss


def loss_and_gradients(student: Student, lesson: Lesson, part: NDArray[np.intp]) -> tuple[float, dict[str, F32]]:
    """Mean KL divergence in nats per token over some windows, and its gradients by parameter."""
    shape = block_shape(student.decoder, lesson.embedded.shape[1])
    layers = len(student.decoder.layers)
    inputs = [lesson.embedded[part]]
    for number in range(layers):
        weights, _ = _layer(student, number)
        inputs.append(block(inputs[-1], weights, shape))
    norm = student.parameters.value(_FINAL_NORM)
    hidden = rms_norm(inputs[-1], norm, shape.epsilon)
    loss, gradient = _divergence(hidden, lesson.head, lesson.hidden[part], lesson.teacher_head)
    gradients: dict[str, F32] = {}
    gradient, gradients[_FINAL_NORM] = norm_gradients(inputs.pop(), norm, shape.epsilon, gradient)
    for number in reversed(range(layers)):
        gradient = _layer_backward(student, number, shape, inputs.pop(), gradient, gradients)
    return loss, gradients


def _layer(student: Student, number: int) -> tuple[dict[str, F32], dict[str, F32]]:
    """A layer's current weights, and the levels of tuned matrices, by short name."""
    prefix = f"model.layers.{number}."
    weights, levels = dict[str, F32](), dict[str, F32]()
    for short in MATRICES:
        name = prefix + short
        matrix = student.read(name)
        if not isinstance(matrix, QuantizedMatrix):
            weights[short] = matrix
        elif name not in student.parameters:
            weights[short] = dequantize(matrix)
        else:
            rounding = Rounding(matrix.type, matrix.group, matrix.table)
            levels[short] = grid_of(rounding).levels(matrix.codes.astype(np.float32))
            scales = student.parameters.value(name)
            blocks = levels[short].reshape(*scales.shape, -1) * scales[..., None]
            if matrix.minima is not None:
                blocks += matrix.minima.astype(np.float32)[..., None]
            weights[short] = blocks.reshape(levels[short].shape)
    for short in student.parameters.vectors_of(prefix):
        weights[short] = student.parameters.value(prefix + short)
    return weights, levels


def _layer_backward(
    student: Student, number: int, shape: BlockShape, x: F32, gradient: F32, gradients: dict[str, F32]
) -> F32:
    weights, levels = _layer(student, number)
    x_gradient, own = block_gradients(x, weights, shape, gradient)
    for short, values in own.items():
        name = f"model.layers.{number}.{short}"
        if name not in student.parameters:
            continue
        if short in levels:
            values *= levels[short]
            values = values.reshape(*student.parameters.value(name).shape, -1).sum(-1)
        gradients[name] = values
    return x_gradient


def _divergence(hidden: F32, head: F32, teacher_hidden: F32, teacher_head: F32) -> tuple[float, F32]:
    """Mean of KL(teacher || student), and its gradient with respect to `hidden`."""
    flat, teacher = hidden.reshape(-1, hidden.shape[-1]), teacher_hidden.reshape(-1, hidden.shape[-1])
    gradient = np.empty_like(flat)
    total = 0.0
    for begin in range(0, len(flat), _LOGIT_TOKENS):
        part = slice(begin, begin + _LOGIT_TOKENS)
        wanted, given = _log_softmax(teacher[part] @ teacher_head.T), _log_softmax(flat[part] @ head.T)
        probabilities = np.exp(wanted)
        wanted -= given
        total += float(np.einsum("tv,tv->", probabilities, wanted, dtype=np.float64))
        np.exp(given, out=given)
        given -= probabilities
        gradient[part] = given @ head
    gradient /= np.float32(len(flat))
    return total / len(flat), gradient.reshape(hidden.shape)


def _log_softmax(logits: F32) -> F32:
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits
