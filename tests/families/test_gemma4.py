"""Gemma 4: two shapes of heads, normed values, the keys' values, experts beside a dense MLP, scaled layers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from quant.calibration.text import calibration_windows
from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.packed.packed_file import PackedFile
from tests.families import decoder_reference, parity
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "max_position_embeddings": 512,
    "sliding_window": 20,
    "hidden_size_per_layer_input": 0,
}
SHARED: dict[str, Any] = {**SIZES, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS: dict[str, Any] = {
    **SHARED, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 96,
}  # fmt: skip
SMALL: dict[str, Any] = {
    **SIZES, "num_hidden_layers": 9, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 320,
    "num_kv_shared_layers": 4, "use_double_wide_mlp": True, "final_logit_softcapping": 4.0,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 3,
}  # fmt: skip
"""E2B's kind; size_per_layer_input is no multiple of 32."""
SCALED = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e5, "factor": 2.0},
}
CASES: dict[str, dict[str, Any]] = {
    # transformers pads the numbers of ten layers and more in per_layer_config.
    "dense": {**SIZES, "num_hidden_layers": 12},
    "values of their own": {**SIZES, "num_global_key_value_heads": 1, "final_logit_softcapping": 4.0},
    "values are keys": {**SHARED, "attention_bias": True, "tie_word_embeddings": False},
    "experts": {**EXPERTS, "rope_parameters": SCALED, "final_logit_softcapping": 4.0},
    "shared keys that are values": {
        **SMALL, "hidden_size_per_layer_input": 32, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 5, "use_double_wide_mlp": False, "attention_bias": True,
    },
    "shared keys, inputs of layers": SMALL,
    "inputs of layers": {**SMALL, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 32},
    "experts, other layers": {
        **EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "use_bidirectional_attention": "vision",
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
    },
}  # fmt: skip


def random_model(folder: Path, options: dict[str, Any], kind: str = "Gemma4") -> Any:
    """With layers that are scaled and experts whose factors are."""
    import torch

    model = parity.random_model(kind, folder, configuration=f"{kind}Text", **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in (*model.named_buffers(), *model.named_parameters()):
            if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
                values.copy_(torch.rand(values.shape, generator=generator) + 0.5)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    model = random_model(tmp_path, CASES[case])
    decoder = parity.check(tmp_path, model)
    assert len(decoder.kinds) == (4 if CASES[case].get("num_kv_shared_layers") else 2)


def test_the_model_of_one_tower(tmp_path: Path) -> None:
    """Gemma 4 12B's class: the same layers, without experts."""
    options = {key: value for key, value in SHARED.items() if key != "hidden_size_per_layer_input"}
    model = random_model(tmp_path, {**options, "final_logit_softcapping": 4.0}, kind="Gemma4Unified")
    parity.check(tmp_path, model)


def test_keys_of_layers_that_read_others_are_left_out(tmp_path: Path) -> None:
    """Some checkpoints store them all the same."""
    model = random_model(tmp_path / "plain", SMALL)
    stored = load_file(tmp_path / "plain/model.safetensors")
    extra = {
        f"model.layers.8.self_attn.{part}.weight": stored[f"model.layers.2.self_attn.{part}.weight"]
        for part in ("k_proj", "v_proj", "k_norm")
    }
    config = json.loads((tmp_path / "plain/config.json").read_text())
    parity.write_folder(tmp_path / "whole", config, {**stored, **extra})
    parity.check_converted(tmp_path / "whole", parity.reference_logits(model, parity.prompt()))


def test_what_layers_share_is_not_calibrated(tmp_path: Path) -> None:
    random_model(tmp_path / "folder", SMALL | {"hidden_size_per_layer_input": 32})
    byte_tokenizer().save(str(tmp_path / "folder/tokenizer.json"))
    with pytest.raises(QuantError, match=r"'gptq' runs layers one by one, .* use rtn"):
        convert(tmp_path / "folder", tmp_path / "packed", method="gptq", group_size=32, progress=False)
    convert(tmp_path / "folder", tmp_path / "packed", group_size=32, progress=False)
    file = PackedFile(tmp_path / "packed/model.safetensors")
    assert file.matrices["model.embed_layer_inputs.weight"].type == "int8"
    model = Sequences(tmp_path / "packed", sequences=1, compute_type="int8", kv_type="int16").model
    positions, slots, lengths = (np.array([number], np.int32) for number in (0, 0, 1))
    with pytest.raises(ValueError, match="this model's layers have inputs that come from tokens"):
        model.layer_activations(np.zeros((1, 64), np.float32), positions, slots, lengths, ["hidden"])


def test_what_sees_and_hears_is_left_out(tmp_path: Path) -> None:
    """As published: text_config with other keys than transformers saves, and towers beside the language model."""
    model = random_model(tmp_path / "text", EXPERTS)
    stored = load_file(tmp_path / "text/model.safetensors")
    tensors = {f"model.language_model.{name.removeprefix('model.')}": each for name, each in stored.items()}
    for name in ("vision_tower.patch_embedder.input_proj.weight", "audio_tower.layers.0.weight", "embed_vision.weight"):
        tensors[f"model.{name}"] = stored["model.norm.weight"]
    text = json.loads((tmp_path / "text/config.json").read_text())
    del text["per_layer_config"]
    text |= {key: EXPERTS[key] for key in ("global_head_dim", "num_global_key_value_heads")}
    config = {"model_type": "gemma4", "text_config": text, "vision_config": {}, "dtype": "float32"}
    parity.write_folder(tmp_path / "both", config, tensors)
    parity.check(tmp_path / "both", model)


@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "int8"])
def test_quantized_weights_are_computed_with_as_they_are(qtype: str, tmp_path: Path) -> None:
    """A change of codes may send a token to other experts, so the reference has the packed file's weights."""
    random_model(tmp_path / "folder", EXPERTS)
    byte_tokenizer().save(str(tmp_path / "folder/tokenizer.json"))
    packed = tmp_path / "packed"
    convert(tmp_path / "folder", packed, method="rtn", qtype=qtype, group_size=32, progress=False)
    file = PackedFile(packed / "model.safetensors")
    weights = {name: file.dequantize(name).astype(np.float64) for name in file.matrices}
    weights |= {name: file.vector(name).astype(np.float64) for name in file.vectors}
    ours = Sequences(packed, sequences=1).logits({0: parity.prompt()})
    parity.close(ours, decoder_reference.logits(file.decoder, weights, parity.prompt()))


@pytest.mark.parametrize("options", [SHARED, EXPERTS], ids=["dense", "experts"])
def test_codes_chosen_by_calibration_are_nearer(options: dict[str, Any], tmp_path: Path) -> None:
    """On text like that of the calibration, by the median over tokens: some take other experts."""
    folder = tmp_path / "folder"
    model = random_model(folder, {**options, "num_hidden_layers": 1})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    ids = [int(token) for token in calibration_windows(folder, None, windows=40, tokens=250)[-1]]
    theirs = parity.reference_logits(model, ids)

    def error(method: str) -> float:
        convert(folder, tmp_path / method, method=method, qtype="sym_int4", group_size=32, progress=False)
        model = Sequences(tmp_path / method, sequences=1, compute_type="int8", kv_type="int16")
        missed = np.linalg.norm(model.logits({0: ids}) - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        return float(np.median(missed))

    assert error("gptq") < 0.7 * error("rtn")
