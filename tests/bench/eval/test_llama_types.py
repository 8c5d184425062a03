"""What llama.cpp is given to quantize: the dithered weights, and the mean squares of the inputs."""

from pathlib import Path

import gguf
import numpy as np

from bench.eval.llama_types import DITHER_STEPS, dither, importance_matrix, layer_bits
from quant.calibration.block import attention_input, block, block_shape, rms_norm
from quant.codes.dequantize import dequantize
from quant.codes.matrix import QuantizedMatrix
from quant.conversion.pieces import read_whole
from quant.sources.gguf_file import read_gguf
from quant.sources.open_source import open_source
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf


def test_every_weight_is_moved_by_a_part_of_its_own_step(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    source = write_gguf(tmp_path / "q4.gguf", tensors, kind=gguf.GGMLQuantizationType.Q4_1)
    quantized = open_source(source)
    values = {name: read_whole(tensor) for name, tensor in quantized.tensors.items()}
    floats = write_gguf(tmp_path / "f32.gguf", values)
    dither(source, floats, 3)
    moved = open_source(floats)
    for name, tensor in quantized.tensors.items():
        codes = tensor.read(0, tensor.shape[0])
        found = read_whole(moved.tensors[name])
        if not isinstance(codes, QuantizedMatrix):
            assert np.array_equal(found, values[name]), name
            continue
        steps = np.repeat(np.abs(codes.scales.astype(np.float32)), codes.group, axis=1)
        parts = (found - dequantize(codes)) / steps
        assert np.abs(parts).max() < DITHER_STEPS * 1.001, name
        assert abs(float(parts.std()) - DITHER_STEPS / np.sqrt(3)) < 0.02, name


def test_importance_is_the_mean_square_of_each_input(tmp_path: Path) -> None:
    checkpoint = open_source(write_gguf(tmp_path / "f32.gguf", random_tensors(CONFIG)))
    ids = np.random.default_rng(0).integers(0, CONFIG["vocab_size"], (7, 24)).astype(np.int32)
    found = dict(importance_matrix(checkpoint, ids))
    assert set(found) == {name for name in checkpoint.tensors if name.endswith("_proj.weight")}
    tensors = {name: read_whole(tensor) for name, tensor in checkpoint.tensors.items()}
    shape = block_shape(checkpoint.decoder, 24)
    first, second = (
        {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
        for prefix in ("model.layers.0.", "model.layers.1.")
    )
    x = block(tensors["model.embed_tokens.weight"][ids], first, shape)
    wanted = np.square(attention_input(x, second, shape).astype(np.float64)).mean((0, 1))
    assert np.allclose(found["model.layers.1.self_attn.k_proj.weight"], wanted, rtol=1e-4)
    middle = rms_norm(x, np.ones(x.shape[-1], np.float32), shape.epsilon)
    assert not np.allclose(np.square(middle).mean((0, 1)), wanted, rtol=1e-2)  # norms' weights count


def test_bits_are_those_of_the_layers(tmp_path: Path) -> None:
    for kind, bits in ((gguf.GGMLQuantizationType.Q4_0, 4.5), (gguf.GGMLQuantizationType.Q8_0, 8.5)):
        assert layer_bits(read_gguf(write_gguf(tmp_path / kind.name, random_tensors(CONFIG), kind=kind))) == bits
