import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from kernels import _native
from quant.codes.int4 import quantize_asym_int4, quantize_sym_int4
from quant.codes.int8 import quantize_int8
from quant.codes.lut4 import NF4, NORMAL, quantize_lut4
from quant.codes.matrix import F32, QuantizedMatrix
from quant.conversion.convert import ConversionReport, fingerprint
from quant.conversion.convert import convert as convert_by
from quant.errors import OutputError, QuantError, ResourceError, SourceError, TensorError
from quant.packed.packed_file import PackedFile
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf, write_hf_folder

QUANTIZERS: dict[str, Callable[..., QuantizedMatrix]] = {
    "sym_int4": quantize_sym_int4,
    "asym_int4": quantize_asym_int4,
    "nf4": partial(quantize_lut4, table=NF4),
    "lut4": partial(quantize_lut4, table=NORMAL),
    "int8": quantize_int8,
}
UP = "model.layers.0.mlp.up_proj.weight"


def convert(source: Path, out: Path, **options: Any) -> ConversionReport:
    """By rounding to nearest: tests/quant/conversion/test_calibrated.py has the methods that calibrate."""
    return convert_by(source, out, **{"method": "rtn", **options})


def packed(folder: Path) -> PackedFile:
    return PackedFile(folder / "model.safetensors")


def weights_digest(folder: Path) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in load_file(folder / "model.safetensors").items()}


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    return write_hf_folder(tmp_path / "hf", random_tensors(CONFIG))


class TestTypes:
    @pytest.mark.parametrize("group", [32, 64])
    @pytest.mark.parametrize("qtype", ["sym_int4", "asym_int4", "nf4", "lut4", "int8"])
    def test_integer_types(self, hf_folder: Path, tmp_path: Path, qtype: str, group: int) -> None:
        report = convert(hf_folder, tmp_path / "out", qtype=qtype, group_size=group, progress=False)
        stored = "lut4" if qtype == "nf4" else qtype
        assert (report.qtype, report.group_size, report.notes) == (stored, group, ())
        file = packed(tmp_path / "out")
        for name, values in random_tensors(CONFIG).items():
            if values.ndim == 1:
                assert np.array_equal(file.vector(name), values)
                continue
            kind = "int8" if name == "model.embed_tokens.weight" else stored
            expected = QUANTIZERS[qtype if kind == stored else kind](name, values, group)
            assert file.matrices[name].type == kind
            assert np.array_equal(file.codes(name).codes, expected.codes), name
            assert np.array_equal(file.codes(name).scales, expected.scales), name

    @pytest.mark.parametrize("qtype", ["fp32", "fp16", "bf16"])
    def test_float_types_lose_nothing_that_they_can_hold(self, hf_folder: Path, tmp_path: Path, qtype: str) -> None:
        convert(hf_folder, tmp_path / "out", qtype=qtype, progress=False)
        file = packed(tmp_path / "out")
        for name, values in random_tensors(CONFIG).items():
            read = file.vector(name) if values.ndim == 1 else file.dequantize(name)
            assert np.array_equal(read, values), name

    def test_defaults(self, hf_folder: Path, tmp_path: Path) -> None:
        report = convert(hf_folder, tmp_path / "out", progress=False)
        assert (report.qtype, report.group_size) == ("sym_int4", 64)
        file = packed(tmp_path / "out")
        assert file.matrices["model.embed_tokens.weight"].type == "int8"
        assert file.matrices["lm_head.weight"].type == "sym_int4"
        assert (
            file.metadata["source"]
            == f"hf sha256:{fingerprint([hf_folder / 'config.json', hf_folder / 'model.safetensors'])}"
        )

    def test_a_tied_head_is_int8_or_as_asked(self, tmp_path: Path) -> None:
        tensors = random_tensors(CONFIG)
        del tensors["lm_head.weight"]
        folder = write_hf_folder(tmp_path / "hf", tensors, {**CONFIG, "tie_word_embeddings": True})
        convert(folder, tmp_path / "a", progress=False)
        convert(folder, tmp_path / "b", head_qtype="sym_int4", progress=False)
        assert packed(tmp_path / "a").matrices["model.embed_tokens.weight"].type == "int8"
        assert packed(tmp_path / "b").matrices["model.embed_tokens.weight"].type == "sym_int4"
        assert "lm_head.weight" not in packed(tmp_path / "a").matrices

    def test_rounding_to_bf16_is_said(self, hf_folder: Path, tmp_path: Path) -> None:
        report = convert(hf_folder, tmp_path / "out", qtype="bf16", progress=False)
        assert report.notes == ("Weights were rounded to bf16's short mantissa; fp32 keeps them as they are.",)

    def test_fp16_checkpoints_are_kept_bit_by_bit_and_others_rounded(self, hf_folder: Path, tmp_path: Path) -> None:
        values = np.random.default_rng(5).standard_normal((192, 128)).astype(np.float16)
        values[0] = np.arange(1, 129, dtype=np.uint16).view(np.float16)  # subnormal numbers
        values[1, :2] = 65504, -65504
        exact = random_tensors(CONFIG) | {UP: values.astype(np.float32)}
        folder = write_hf_folder(tmp_path / "fp16", exact, dtype="fp16")
        gguf = write_gguf(tmp_path / "x.gguf", exact, kind=Kind.F16)
        for number, source in enumerate((folder, gguf)):
            report = convert(source, tmp_path / f"out{number}", qtype="fp16", progress=False)
            assert report.notes == ()
            file = packed(tmp_path / f"out{number}")
            assert file.matrices[UP].type == "fp16"
            assert np.array_equal(file.dequantize(UP), exact[UP])
        rounded = convert(hf_folder, tmp_path / "rounded", qtype="fp16", progress=False)
        assert rounded.notes == ("Weights were rounded to fp16; fp32 keeps them as they are.",)

    def test_a_weight_beyond_fp16_is_refused(self, tmp_path: Path) -> None:
        values = random_tensors(CONFIG)
        values[UP][7, 9] = -65520  # the smallest that rounds to infinity
        folder = write_hf_folder(tmp_path / "hf", values)
        with pytest.raises(TensorError, match=r"up_proj.*a weight of 65520 exceeds fp16's range; use bf16 or fp32"):
            convert(folder, tmp_path / "out", qtype="fp16", progress=False)

    def test_fp16_reaches_int4_unrounded(self, tmp_path: Path) -> None:
        factor = np.float32(1 + 2.0**-10)  # reaches the last bit of fp16's mantissa
        exact = {
            name: (values * factor).astype(np.float16).astype(np.float32)
            for name, values in random_tensors(CONFIG).items()
        }
        convert(write_hf_folder(tmp_path / "hf", exact, dtype="fp16"), tmp_path / "out", progress=False)
        expected = quantize_sym_int4(UP, exact[UP], 64)
        assert np.array_equal(packed(tmp_path / "out").codes(UP).codes, expected.codes)


class TestSourcesAgree:
    def test_dtypes_and_shards(self, tmp_path: Path) -> None:
        tensors = random_tensors(CONFIG)
        digests = []
        for dtype in ("fp32", "fp16", "bf16"):
            for shards in (1, 3):
                folder = write_hf_folder(tmp_path / f"{dtype}-{shards}", tensors, dtype=dtype, shards=shards)
                out = tmp_path / f"out-{dtype}-{shards}"
                convert(folder, out, progress=False)
                digests.append(weights_digest(out))
        assert all(digest == digests[0] for digest in digests)

    @pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
    def test_gguf_and_hugging_face(self, hf_folder: Path, tmp_path: Path, kind: Kind) -> None:
        convert(hf_folder, tmp_path / "a", progress=False)
        convert(write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG), kind=kind), tmp_path / "b", progress=False)
        assert weights_digest(tmp_path / "a") == weights_digest(tmp_path / "b")


class TestKeptCodes:
    @pytest.mark.parametrize(("kind", "name"), [(Kind.Q4_0, "sym_int4"), (Kind.Q4_1, "asym_int4"), (Kind.Q8_0, "int8")])
    def test_auto_keeps_codes(self, tmp_path: Path, kind: Kind, name: str) -> None:
        tensors = random_tensors(CONFIG)
        report = convert(write_gguf(tmp_path / "x.gguf", tensors, kind=kind), tmp_path / "out", progress=False)
        assert (report.qtype, report.group_size, report.notes) == (name, 32, ())
        file = packed(tmp_path / "out")
        for tensor, values in tensors.items():
            if values.ndim == 2:
                assert np.array_equal(file.dequantize(tensor), gguf.dequantize(gguf.quantize(values, kind), kind))

    def test_the_same_type_and_group_keeps_codes_too(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG), kind=Kind.Q4_1)
        convert(path, tmp_path / "a", progress=False)
        convert(path, tmp_path / "b", qtype="asym_int4", group_size=32, progress=False)
        assert packed(tmp_path / "a").packed(UP).tobytes() == packed(tmp_path / "b").packed(UP).tobytes()

    @pytest.mark.parametrize(("qtype", "group", "said"), [("asym_int4", 64, 1), ("asym_int4", 32, 1), ("fp32", 32, 0)])
    def test_only_a_loss_is_said(self, tmp_path: Path, qtype: str, group: int, said: int) -> None:
        path = write_gguf(tmp_path / "x.gguf", random_tensors(CONFIG), kind=Kind.Q4_1)
        # The embedding is 4 bits in this file, and int8 as asked for here.
        report = convert(path, tmp_path / "out", qtype=qtype, group_size=group, progress=False)
        assert len(report.notes) == said

    def test_another_type_requantizes_and_says_so(self, tmp_path: Path) -> None:
        tensors = random_tensors(CONFIG)
        path = write_gguf(tmp_path / "x.gguf", tensors, kind=Kind.Q4_1)
        report = convert(path, tmp_path / "out", qtype="sym_int4", progress=False)
        assert "requantized" in report.notes[0]
        values = gguf.dequantize(gguf.quantize(tensors[UP], Kind.Q4_1), Kind.Q4_1)
        expected = quantize_sym_int4(UP, values, 64)
        assert np.array_equal(packed(tmp_path / "out").codes(UP).codes, expected.codes)


def test_what_is_written_beside_the_weights(hf_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    convert(hf_folder, out, progress=False)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0].content }}"
    assert settings["eos_token"] == "<|im_end|>"
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert Tokenizer.from_file(str(out / "tokenizer.json")).encode("a<|im_end|>").ids[-1] == 2
    assert json.loads((out / "config.json").read_text())["head_dim"] == 32


@pytest.mark.parametrize("qtype", ["auto", "asym_int4", "nf4", "bf16"])
def test_the_engine_opens_it(hf_folder: Path, tmp_path: Path, qtype: str) -> None:
    out = tmp_path / "out"
    convert(hf_folder, out, qtype=qtype, progress=False)
    model = _native.Model(str(out), threads=1, kv_pages=4, max_sequences=1, max_step_tokens=16, max_context_tokens=64)
    assert (model.vocab_size, model.hidden_size, model.layers) == (320, 128, 2)


class TestRefusals:
    def test_group_that_does_not_divide(self, embedded_gguf: Path, tmp_path: Path) -> None:
        with pytest.raises(TensorError, match=r"'model.embed_tokens.weight'.*576.*128; use 32 or 64"):
            convert(embedded_gguf, tmp_path / "out", qtype="sym_int4", group_size=128, progress=False)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"qtype": "int3"}, "qtype 'int3' is not one of auto, sym_int4"),
            ({"group_size": 48}, "group size 48 is not one of 32, 64, 128"),
            ({"head_qtype": "auto"}, "head_qtype 'auto'"),
        ],
    )
    def test_options(self, hf_folder: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(QuantError, match=message):
            convert(hf_folder, tmp_path / "out", progress=False, **options)

    def replace_tensor(self, folder: Path, name: str, values: F32 | None) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors[name]
        save_file(tensors | ({} if values is None else {name: values}), folder / "model.safetensors")

    @pytest.mark.parametrize("qtype", ["sym_int4", "fp32", "fp16", "bf16"])
    def test_nan_leaves_nothing(self, hf_folder: Path, tmp_path: Path, qtype: str) -> None:
        values = random_tensors(CONFIG)[UP]
        values[100, 7] = np.nan
        self.replace_tensor(hf_folder, UP, values)
        with pytest.raises(TensorError, match=r"layers.0.mlp.up_proj.weight'.*NaN"):
            convert(hf_folder, tmp_path / "out", qtype=qtype, progress=False)
        assert [path.name for path in tmp_path.iterdir()] == ["hf"]

    def test_nan_in_a_norm(self, hf_folder: Path, tmp_path: Path) -> None:
        self.replace_tensor(hf_folder, "model.norm.weight", np.full(128, np.inf, np.float32))
        with pytest.raises(TensorError, match=r"'model.norm.weight'.*infinite"):
            convert(hf_folder, tmp_path / "out", progress=False)

    def test_missing_tensor(self, hf_folder: Path, tmp_path: Path) -> None:
        self.replace_tensor(hf_folder, UP, None)
        with pytest.raises(SourceError, match=f"lacks the tensor '{UP}'"):
            convert(hf_folder, tmp_path / "out", progress=False)

    def test_wrong_shape(self, hf_folder: Path, tmp_path: Path) -> None:
        self.replace_tensor(hf_folder, UP, np.zeros((192, 96), np.float32))
        with pytest.raises(TensorError, match=r"shape \(192, 96\), the configuration says \(192, 128\)"):
            convert(hf_folder, tmp_path / "out", progress=False)

    def test_unused_tensor(self, hf_folder: Path, tmp_path: Path) -> None:
        tensors = load_file(hf_folder / "model.safetensors")
        save_file(tensors | {"lora.weight": np.zeros(3, np.float32)}, hf_folder / "model.safetensors")
        with pytest.raises(SourceError, match=r"has the tensor 'lora.weight', which"):
            convert(hf_folder, tmp_path / "out", progress=False)

    def test_no_tokenizer(self, hf_folder: Path, tmp_path: Path) -> None:
        (hf_folder / "tokenizer.json").unlink()
        with pytest.raises(SourceError, match=r"has no tokenizer.json; take it from where"):
            convert(hf_folder, tmp_path / "out", progress=False)
        (hf_folder / "tekken.json").write_bytes(b"")
        with pytest.raises(SourceError, match=r"has no tokenizer.json, only tekken.json, which is not read: load it"):
            convert(hf_folder, tmp_path / "out", progress=False)
        (hf_folder / "tokenizer.model").write_bytes(b"")
        with pytest.raises(
            SourceError, match=r"has no tokenizer.json, only tokenizer.model, which is not read: load it"
        ):
            convert(hf_folder, tmp_path / "out", progress=False)

    def test_full_disk(self, hf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
        with pytest.raises(ResourceError, match=r"out: needs \d\d MB of disk, 0 MB are free$"):
            convert(hf_folder, tmp_path / "out", progress=False)
        assert [path.name for path in tmp_path.iterdir()] == ["hf"]


class TestAtomicity:
    def test_existing_folder(self, hf_folder: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        convert(hf_folder, out, progress=False)
        with pytest.raises(OutputError, match="exists already"):
            convert(hf_folder, out, progress=False)
        convert(hf_folder, out, qtype="int8", force=True, progress=False)
        assert packed(out).metadata["qtype"] == "int8"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]

    def test_force_replaces_only_a_converted_model(self, hf_folder: Path, tmp_path: Path) -> None:
        precious = tmp_path / "home"
        precious.mkdir()
        (precious / "thesis").write_text("years of work")
        for target in (precious, hf_folder, precious / "thesis"):
            with pytest.raises(OutputError, match="is not a converted model; it is not replaced"):
                convert(hf_folder, target, force=True, progress=False)
        assert (precious / "thesis").read_text() == "years of work"

    def test_a_failed_replacement_keeps_the_old_model(self, hf_folder: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        convert(hf_folder, out, progress=False)
        before = weights_digest(out)
        values = random_tensors(CONFIG)[UP]
        values[0, 0] = np.inf
        TestRefusals().replace_tensor(hf_folder, UP, values)
        with pytest.raises(TensorError):
            convert(hf_folder, out, force=True, progress=False)
        assert weights_digest(out) == before

    def interrupted(self, hf_folder: Path, out: Path, number: signal.Signals) -> int:
        """Converts in a process that gets a signal in the middle of the weights; returns its exit status."""
        code = f"""
            import os, quant.conversion.pieces as module
            from quant.conversion.convert import convert
            from pathlib import Path
            quantize, pieces = module._packed_piece, []
            def piece(*arguments):
                pieces.append(1)
                if len(pieces) == 5:
                    assert len(list(Path({str(out.parent)!r}).glob(".out.partial-*/model.safetensors"))) == 1
                    os.kill(os.getpid(), {int(number)})
                return quantize(*arguments)
            module._packed_piece = piece
            convert(Path({str(hf_folder)!r}), Path({str(out)!r}), method="rtn", progress=False)
        """
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        finished = subprocess.run(command, env=environment, capture_output=True, timeout=240)
        assert b"AssertionError" not in finished.stderr
        return finished.returncode

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_leaves_nothing(self, hf_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
        status = self.interrupted(hf_folder, tmp_path / "out", number)
        assert status in (-number, 128 + number)
        assert [path.name for path in tmp_path.iterdir()] == ["hf"]

    def test_what_a_killed_process_left_goes_with_the_next(self, hf_folder: Path, tmp_path: Path) -> None:
        assert self.interrupted(hf_folder, tmp_path / "out", signal.SIGKILL) == -signal.SIGKILL
        assert len(list(tmp_path.glob(".out.partial-*"))) == 1
        convert(hf_folder, tmp_path / "out", progress=False)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def sparse_folder(folder: Path, layers: int) -> Path:
    """A bf16 checkpoint of zeros that takes no disk: 26 MB a layer, 67 MB for the embedding."""
    config: Mapping[str, Any] = {
        **CONFIG,
        "vocab_size": 32768,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "tie_word_embeddings": True,
    }
    from quant.families.names import engine_tensors
    from quant.families.registry import describe

    write_hf_folder(folder, {}, config)
    header: dict[str, Any] = {}
    position = 0
    for name, tensor in engine_tensors(describe(config, "test")).items():
        end = position + 2 * int(np.prod(tensor.shape))
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
    return folder


def peak_growth_bytes(folder: Path, out: Path) -> int:
    """By how much converting raises the peak memory of a process that has everything imported."""
    code = f"""
        import resource
        from pathlib import Path
        import numpy, tokenizers, tqdm
        from quant.conversion.convert import convert
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        convert(Path({str(folder)!r}), Path({str(out)!r}), method="rtn", progress=False)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return int(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=240).stdout)


def test_memory_stays_near_the_largest_tensor(tmp_path: Path) -> None:
    folder = sparse_folder(tmp_path / "hf", layers=16)
    model_bytes = (folder / "model.safetensors").stat().st_size
    largest_tensor_bytes = 2 * 32768 * 1024
    assert model_bytes > 7 * largest_tensor_bytes
    growth = peak_growth_bytes(folder, tmp_path / "out")
    assert growth < 1.5 * largest_tensor_bytes
