"""With transformers: exported folders load, its models run on our layers, its streamers and tensors are understood."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant import AutoModelForCausalLM
from quant.conversion.convert import convert
from quant.conversion.export import export
from quant.packed.native_model import NativeModel
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

pytestmark = pytest.mark.parity
IDS = [int(i) for i in np.random.default_rng(0).integers(3, 250, 60)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformers")
    tensors = {n: v * (0.15 if v.ndim == 2 else 1.0) for n, v in random_tensors(CONFIG, seed=8).items()}
    write_hf_folder(folder / "hf", {name: values.astype(np.float32) for name, values in tensors.items()})
    convert(
        folder / "hf",
        folder / "packed",
        qtype="sym_int4",
        group_size=32,
        head_qtype="fp32",
        method="rtn",
        progress=False,
    )
    return folder


def transformers_logits(model: Any, ids: list[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids])).logits[0].float().numpy())


def test_an_export_loads_and_gives_our_logits(folders: Path) -> None:
    import transformers

    export(folders / "packed", folders / "export", progress=False)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folders / "export")
    model.eval()
    theirs = transformers_logits(model, IDS)
    with NativeModel(folders / "packed", context_tokens=64, threads=1, compute_type="fp32", kv_type="fp32") as native:
        ours = np.concatenate([part for _, part in native.logits(IDS)])
    assert np.abs(ours - theirs).max() < 1000 * np.finfo(np.float32).eps * np.abs(theirs).max()


def test_any_model_of_transformers_gets_our_layers(folders: Path) -> None:
    import torch
    import transformers

    from quant import RedoubtConfig
    from quant.transformers_bridge.torch_linear import PackedLinear

    plain: Any = transformers.AutoModelForCausalLM.from_pretrained(folders / "hf")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folders / "hf", quantization_config=RedoubtConfig(group_size=32)
    )
    plain.eval()
    model.eval()
    layers = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert len(layers) == 14
    assert type(model.lm_head) is torch.nn.Linear
    # The same rounding as the converted model's; int8 activations in both, everything else in fp32.
    with NativeModel(folders / "packed", context_tokens=64, threads=1, kv_type="fp32") as native:
        engine = np.concatenate([part for _, part in native.logits(IDS)])
    ours, theirs = transformers_logits(model, IDS), transformers_logits(plain, IDS)
    size = np.linalg.norm(theirs)
    assert np.linalg.norm(ours - engine) / size < np.linalg.norm(ours - theirs) / size / 2
    assert np.linalg.norm(ours - theirs) / size < 0.5
    output = model.generate(torch.tensor([IDS[:5]]), max_new_tokens=4, do_sample=False)
    assert output.shape == (1, 9)


@pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "nf4", "lut4", "int8"])
def test_a_layer_is_its_weights_times_its_input(qtype: str) -> None:
    import torch

    from kernels import _native
    from quant.transformers_bridge.torch_linear import PackedLinear, pack_weight

    torch.manual_seed(0)
    weight, bias = torch.randn(72, 128), torch.randn(72)
    packed = pack_weight("w", weight, qtype, 64)
    layer = PackedLinear(packed, 72, 128, qtype, 64, bias)
    kind, table = ("lut4", layer._table) if qtype in ("nf4", "lut4") else (qtype, None)
    rounded = torch.from_numpy(_native.PackedMatrix(packed, kind, 72, 128, 64, table=table).dequantize())
    x = torch.randn(2, 5, 128)
    exact = x.double() @ rounded.double().T + bias.double()
    result = layer(x)
    assert result.shape == (2, 5, 72)
    assert (result - exact).norm() / exact.norm() < 0.01
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert layer(x[:0]).shape == (0, 5, 72)
    assert torch.equal(layer(x)[1, 3], layer(x[1, 3]))


def test_a_config_names_what_is_wrong() -> None:
    from quant import RedoubtConfig

    for options in ({"qtype": "int3"}, {"group_size": 48}, {"bits": 4}, {"backend": "cuda"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            RedoubtConfig(**options)


@pytest.mark.parametrize(("backend", "package"), [("torchao", "torchao"), ("ipex", "intel_extension_for_pytorch")])
def test_kernels_that_are_not_installed_are_named(backend: str, package: str) -> None:
    from quant import RedoubtConfig

    if importlib.util.find_spec(package) is not None:
        pytest.skip("installed: `python -m bench.experiments.foreign_linear` proves it")
    with pytest.raises(ImportError, match=package):
        RedoubtConfig(backend=backend)


def test_nine_lines(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast, TextStreamer

    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folders / "packed/tokenizer.json")
    )
    model = AutoModelForCausalLM.from_pretrained(folders / "packed", load_in_4bit=True, threads=1)
    ids = torch.tensor([tokenizer.encode("Once upon a time")])
    output = model.generate(ids, streamer=TextStreamer(tokenizer), max_new_tokens=8, eos_token_id=[])
    assert isinstance(output, torch.Tensor)
    assert output.shape == (1, ids.shape[1] + 8)
    assert capsys.readouterr().out.strip() == tokenizer.decode(output[0]).strip()
