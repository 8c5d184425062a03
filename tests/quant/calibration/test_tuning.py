import numpy as np

from quant.calibration.block import block, block_shape, rms_norm
from quant.calibration.tuning import Adam, Lesson, Scaled, Tuned, batches, loss_and_gradients
from quant.model_config import complete_config, expected_tensors
from tests.kernels.tiny_model import LLAMA, random_tensors


def lesson_and_student() -> tuple[Tuned, Lesson]:
    """A model whose scales and norms were shaken, and the original's answers."""
    config, _ = complete_config(LLAMA, "test")
    tensors = random_tensors(LLAMA)
    generator = np.random.default_rng(0)
    ids = generator.integers(0, config["vocab_size"], (3, 12))
    shape = block_shape(config, 12)
    embedded = tensors["model.embed_tokens.weight"][ids]
    x = embedded
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        x = block(x, {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}, shape)
    hidden = rms_norm(x, tensors["model.norm.weight"], shape.epsilon)
    matrices, vectors = {}, {}
    for name, tensor in expected_tensors(config).items():
        if tensor.role == "linear":
            scales = generator.uniform(0.8, 1.2, (tensor.shape[0], tensor.shape[1] // 32)).astype(np.float32)
            matrices[name] = Scaled(tensors[name], scales, None)
        elif tensor.role == "vector":
            vectors[name] = tensors[name] * generator.uniform(0.9, 1.1, tensor.shape).astype(np.float32)
    head = tensors["lm_head.weight"]
    return Tuned(config, matrices, vectors, head), Lesson(embedded, hidden, head)


def test_the_loss_is_zero_for_the_original() -> None:
    model, lesson = lesson_and_student()
    tensors = random_tensors(LLAMA)
    for name, part in model.matrices.items():
        model.matrices[name] = Scaled(part.levels, np.ones_like(part.scales), None)
    model.vectors = {name: tensors[name] for name in model.vectors}
    loss, gradients = loss_and_gradients(model, lesson, np.arange(3))
    assert abs(loss) < 1e-6
    assert all(np.abs(gradient).max() < 1e-3 for gradient in gradients.values())


def test_gradients_are_the_differences() -> None:
    model, lesson = lesson_and_student()
    part = np.array([0, 2])
    loss, gradients = loss_and_gradients(model, lesson, part)
    assert loss > 0.01
    assert set(gradients) == set(model.matrices) | set(model.vectors)
    generator = np.random.default_rng(1)
    for name, gradient in gradients.items():
        values = model.matrices[name].scales if name in model.matrices else model.vectors[name]
        direction = generator.standard_normal(values.shape).astype(np.float32)
        direction += gradient / np.linalg.norm(gradient) * np.float32(np.sqrt(gradient.size))  # well above rounding
        kept, losses = values.copy(), []
        for step in (1e-3, -1e-3):
            values[:] = kept + np.float32(step) * direction
            losses.append(loss_and_gradients(model, lesson, part)[0])
        values[:] = kept
        expected = float((gradient * direction).sum())
        assert abs((losses[0] - losses[1]) / 2e-3 - expected) < 0.02 * abs(expected) + 1e-3, name


def test_adam_goes_down() -> None:
    adam, x = Adam(), np.array([3.0, -2.0], np.float32)
    for _ in range(200):
        x -= np.float32(0.05) * adam.step("x", 2 * x)
    assert np.abs(x).max() < 0.1


def test_every_window_comes_once_an_epoch() -> None:
    seen = list(batches(8, 4, 3))
    assert len(seen) == 6
    for epoch in range(3):
        assert sorted(np.concatenate(seen[2 * epoch : 2 * epoch + 2])) == list(range(8))
