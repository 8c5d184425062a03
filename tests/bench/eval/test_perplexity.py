"""`redoubt eval perplexity` and `kl` on a tiny model, against a computation of our own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from bench.eval import command
from bench.eval.journal import Journal
from bench.eval.perplexity import kl_summary, perplexity
from quant.conversion.convert import convert
from quant.packed.native_model import STEP_TOKENS, NativeModel


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert command.main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_perplexity_is_that_of_consecutive_windows_from_their_second_token(
    packed: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = run(capsys, "perplexity", packed, "--text", text, "--context", 50, "--windows", 3, "--json")
    ids = Tokenizer.from_file(str(packed / "tokenizer.json")).encode(text.read_text(), add_special_tokens=False).ids
    scores = []
    with NativeModel(packed, context_tokens=50, threads=1) as model:
        for begin in (0, 50, 100):
            window = ids[begin : begin + 50]
            ((_, logits),) = model.logits(window)
            exact = logits.astype(np.float64)
            exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
            scores += [exact[i, window[i + 1]] for i in range(49)]
    assert result["tokens"] == 3 * 49
    assert result["perplexity"] == pytest.approx(np.exp(-np.mean(scores)), rel=1e-6)
    assert result["perplexity_stderr"] > 0
    assert (result["compute_type"], result["kv_type"], result["qtype"]) == ("int8", "int16", "sym_int4")


@pytest.mark.parametrize(
    ("config", "begins_with_bos"),
    [
        ({"add_bos_token": True, "bos_token": {"content": "<|im_start|>"}}, True),
        ({"add_bos_token": True, "bos_token": "<|im_start|>"}, True),
        ({"add_bos_token": False, "bos_token": "<|im_start|>"}, False),
        ({"bos_token": "<|im_start|>"}, False),
    ],
)
@pytest.mark.parametrize("processor_adds_it", [False, True])
def test_windows_begin_with_bos_where_the_model_wants_one(
    config: dict[str, Any], begins_with_bos: bool, processor_adds_it: bool, packed: Path, text: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(packed / name)
    tokenizer = Tokenizer.from_file(str(packed / "tokenizer.json"))
    if processor_adds_it:
        tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (result,) = run(capsys, "perplexity", folder, "--text", text, "--context", 30, "--windows", 2, "--json")
    ids = tokenizer.encode(text.read_text(), add_special_tokens=False).ids
    expected = begins_with_bos or (processor_adds_it and "add_bos_token" not in config)
    windows = [[1, *ids[:29]], [1, *ids[29:58]]] if expected else [ids[:30], ids[30:60]]
    with NativeModel(packed, context_tokens=30, threads=1) as model:
        assert result == result | perplexity(model, windows, Journal("x", tmp_path), "0", lambda: None)


def test_a_checkpoint_is_its_own_unquantized_baseline(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(checkpoint, tmp_path / "fp32", qtype="fp32", progress=False)
    options = ["--text", text, "--context", 40, "--windows", 2, "--json"]
    (ours,) = run(capsys, "perplexity", checkpoint, *options)
    (packed_fp32,) = run(
        capsys, "perplexity", tmp_path / "fp32", *options, "--compute-type", "fp32", "--kv-type", "fp32"
    )
    assert ours["unquantized"]
    assert ours["perplexity"] == packed_fp32["perplexity"]


def test_divergence_from_the_baseline(
    checkpoint: Path, packed: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(checkpoint, tmp_path / "int8", qtype="int8", group_size=32, progress=False)
    options = ["--baseline", checkpoint, "--text", text, "--context", 40, "--windows", 3, "--json"]
    int4, int8 = run(capsys, "kl", packed, tmp_path / "int8", *options)
    assert 0 < int8["kl"]["mean"] < int4["kl"]["mean"] / 10
    assert int4["kl"]["median"] <= int4["kl"]["p90"] <= int4["kl"]["p99.9"] <= int4["kl"]["max"]
    assert int8["top1_agreement"] > 0.9
    assert int4["perplexity_increase"] == pytest.approx(
        int4["perplexity"] / int4["baseline"]["perplexity"] - 1, rel=1e-6
    )
    (alone,) = run(capsys, "perplexity", packed, *options[2:])
    assert alone["perplexity"] == int4["perplexity"]
    (itself,) = run(capsys, "kl", checkpoint, *options)
    assert itself["kl"]["max"] == 0
    assert itself["top1_agreement"] == 1


def test_a_window_longer_than_a_step_scores_the_same(packed: Path) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 260, STEP_TOKENS + 50)]
    with NativeModel(packed, context_tokens=len(ids), branches=1, threads=1) as model:
        parts = [logits for _, logits in model.logits(ids)]
        assert len(parts) == 2
        model.prefill(ids[:100])
        (rest,) = model.branches(100, [ids[100:150]])
    assert np.array_equal(np.concatenate(parts)[100:150], rest)


def test_an_interrupted_run_goes_on(packed: Path, tmp_path: Path) -> None:
    windows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    with NativeModel(packed, context_tokens=8, threads=1) as model:

        def interrupt() -> None:
            raise KeyboardInterrupt

        journal = Journal("x", tmp_path)
        with pytest.raises(KeyboardInterrupt):
            perplexity(model, windows, journal, "0", interrupt)
        journal = Journal("x", tmp_path)
        assert "0/0" in journal
        resumed = perplexity(model, windows, journal, "0", lambda: None)
        assert resumed == perplexity(model, windows, Journal("y", tmp_path), "0", lambda: None)


def test_percentiles() -> None:
    summary = kl_summary(np.arange(1001.0))
    assert summary == pytest.approx({
        "mean": 500, "median": 500, "p90": 900, "p95": 950, "p99": 990, "p99.9": 999, "max": 1000,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context", "1"], "two tokens at least"),
        (["--windows", "500"], "windows of 512, not 500"),
    ],
)
def test_refusals(
    packed: Path, text: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["perplexity", str(packed), "--text", str(text), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_model_is_named(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["perplexity", str(tmp_path / "none"), "--text", str(text)]) == 2
    assert "none: no such file or folder" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_named(packed: Path, tmp_path: Path, text: Path, capsys: Any) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(packed / name)
    assert command.main(["perplexity", str(folder), "--text", str(text)]) == 2
    assert "bare: has no tokenizer.json, which the converted model needs" in capsys.readouterr().err
