"""Tunes what is free in a quantized model, its scales and norms, so that its answers come nearest to the original's.

The codes stay. The loss is the KL divergence of the original model's next-token distribution from the quantized one's,
over calibration windows; gradients run back through the whole model (`block.block_gradients`), so all its weights are
held in fp32: for models of up to half a billion weights. Sources: Kim et al. 2023, "PEQA";
Chen et al. 2024,
"EfficientQAT". Does not know how codes were chosen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quant.calibration.block import BlockShape, block, block_gradients, block_shape, norm_gradients, rms_norm
from quant.matrix import F32

LOGIT_TOKENS: Final = 256  # whose logits are held at once


@dataclass(frozen=True, slots=True)
class Scaled:
    """A matrix as levels [rows, cols] that do not change and scales [rows, groups] that do, with minima added."""

    levels: F32
    scales: F32
    minima: F32 | None

    def values(self) -> F32:
        """fp32 [rows, cols]."""
        rows, cols = self.levels.shape
        blocks = self.levels.reshape(rows, self.scales.shape[1], -1) * self.scales[..., None]
        if self.minima is not None:
            blocks += self.minima[..., None]
        return blocks.reshape(rows, cols)

    def scale_gradient(self, gradient: F32) -> F32:
        """Of the scales, from that of the values."""
        return np.asarray((gradient * self.levels).reshape(*self.scales.shape, -1).sum(-1))


@dataclass(slots=True)
class Tuned:
    """A model that is tuned: its matrices by full name, norms and biases, and the head [vocabulary, hidden]."""

    config: Mapping[str, Any]
    matrices: dict[str, Scaled]
    vectors: dict[str, F32]
    head: F32


@dataclass(frozen=True, slots=True)
class Lesson:
    """Calibration windows: the embedding rows that the quantized model sees, and the original's last hidden states.

    Both [windows, tokens, hidden]; hidden states are after the final norm, to be multiplied with teacher_head.
    """

    embedded: F32
    hidden: F32
    teacher_head: F32


def loss_and_gradients(model: Tuned, lesson: Lesson, part: slice) -> tuple[float, dict[str, F32]]:
    """Mean KL divergence in nats a token over some windows, and its gradients: of scales and vectors, by full name."""
    shape = block_shape(model.config, lesson.embedded.shape[1])
    layers = int(model.config["num_hidden_layers"])
    inputs = [lesson.embedded[part]]
    for number in range(layers):
        inputs.append(block(inputs[-1], _layer(model, number), shape))
    norm = model.vectors["model.norm.weight"]
    hidden = rms_norm(inputs[-1], norm, shape.epsilon)
    loss, gradient = _divergence(hidden, model.head, lesson.hidden[part], lesson.teacher_head)
    gradients: dict[str, F32] = {}
    gradient, gradients["model.norm.weight"] = norm_gradients(inputs.pop(), norm, shape.epsilon, gradient)
    for number in reversed(range(layers)):
        gradient = _layer_backward(model, number, shape, inputs.pop(), gradient, gradients)
    return loss, gradients


def _layer(model: Tuned, number: int) -> dict[str, F32]:
    prefix = f"model.layers.{number}."
    weights = {
        name.removeprefix(prefix): part.values() for name, part in model.matrices.items() if name.startswith(prefix)
    }
    return weights | {name.removeprefix(prefix): v for name, v in model.vectors.items() if name.startswith(prefix)}


def _layer_backward(
    model: Tuned, number: int, shape: BlockShape, x: F32, gradient: F32, gradients: dict[str, F32]
) -> F32:
    x_gradient, own = block_gradients(x, _layer(model, number), shape, gradient)
    for short, values in own.items():
        name = f"model.layers.{number}.{short}"
        gradients[name] = model.matrices[name].scale_gradient(values) if name in model.matrices else values
    return x_gradient


def _divergence(hidden: F32, head: F32, teacher_hidden: F32, teacher_head: F32) -> tuple[float, F32]:
    """Mean KL divergence of the teacher's distribution from the student's, and its gradient at `hidden`."""
    flat, teacher = hidden.reshape(-1, hidden.shape[-1]), teacher_hidden.reshape(-1, hidden.shape[-1])
    gradient = np.empty_like(flat)
    total = 0.0
    for begin in range(0, len(flat), LOGIT_TOKENS):
        part = slice(begin, begin + LOGIT_TOKENS)
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


class Adam:
    """Kingma and Ba 2014, "Adam", with each parameter's step relative to its own size."""

    def __init__(self, first: float = 0.9, second: float = 0.99) -> None:
        self._first, self._second = first, second
        self._moments: dict[str, tuple[F32, F32]] = {}
        self._steps: dict[str, int] = {}

    def step(self, name: str, gradient: F32) -> F32:
        """The direction to subtract, of size about 1."""
        mean, square = self._moments.get(name, (np.zeros_like(gradient), np.zeros_like(gradient)))
        count = self._steps.get(name, 0) + 1
        mean = np.float32(self._first) * mean + np.float32(1 - self._first) * gradient
        square = np.float32(self._second) * square + np.float32(1 - self._second) * gradient * gradient
        self._moments[name], self._steps[name] = (mean, square), count
        mean = mean / np.float32(1 - self._first**count)
        square = square / np.float32(1 - self._second**count)
        return np.asarray(mean / (np.sqrt(square) + np.float32(1e-12)))


def batches(windows: int, size: int, epochs: int, seed: int = 0) -> Iterator[NDArray[np.intp]]:
    """Numbers of windows, each epoch in an order of its own."""
    generator = np.random.Generator(np.random.PCG64(seed))
    for _ in range(epochs):
        order = generator.permutation(windows)
        for begin in range(0, windows - windows % size, size):
            yield np.sort(order[begin : begin + size])
