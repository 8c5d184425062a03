"""`redoubt plan`: every way to name a model and a machine, both outputs, and mistakes in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from typer.testing import CliRunner

from app.capacity import simulation
from app.capacity.machine import Machine
from app.cli import cli
from app.commands.plan_inputs import read_demand
from app.workers import machine_rates
from quant.conversion.convert import convert
from quant.conversion.synth import synth
from quant.packed.packed_file import FILE_NAME, PackedFile
from tests.app.capacity.shapes import machine
from tests.engine.speculative.test_predictor_native import DENSE as PREDICTING
from tests.kernels.tiny_model import described_tensors, write_described
from tests.quant.checkpoints import CONFIG, random_tensors, write_gguf, write_hf_folder
from tests.sizes import FULL

FAST = ["--machine", "epyc-9354"]


@pytest.fixture(autouse=not FULL)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "REQUESTS", 200)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["plan", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def planned(*arguments: str) -> dict[str, Any]:
    status, output = run(*arguments, "--json")
    assert status == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_folder(tmp_path_factory.mktemp("models") / "hf", random_tensors(CONFIG))


def test_without_a_model_all_shapes_and_machines_are_listed() -> None:
    status, output = run()
    assert status == 0
    assert "qwen3-4b" in output
    assert "epyc-9354" in output
    names = json.loads(run("--json")[1])
    assert "llama3.1-8b" in names["models"]
    assert "xeon-6980p" in names["machines"]


def test_a_draft_model_takes_memory_and_makes_answers_faster() -> None:
    alone, drafted = (planned("qwen3-8b", *FAST, *more) for more in ((), ("--draft", "qwen3-0.6b")))
    draft = drafted["draft"]
    assert drafted["memory"]["weight_bytes"] - alone["memory"]["weight_bytes"] == draft["weight_bytes"]
    assert drafted["memory"]["kv_tokens_per_worker"] < alone["memory"]["kv_tokens_per_worker"]
    one, *more = draft["speeds"]
    assert one["gain"] > 1.3
    assert all(1 <= speed["gain"] < one["gain"] for speed in more)
    assert "qwen3-0.6b drafts: 394.4 MB" in run("qwen3-8b", *FAST, "--draft", "qwen3-0.6b")[1]


def test_an_eagle_head_is_planned_by_name_and_as_a_folder(tmp_path: Path) -> None:
    small, head = (planned("qwen3-8b", *FAST, "--draft", draft)["draft"] for draft in ("qwen3-0.6b", "eagle"))
    layer = 4096 * (8192 + 4096) + 2 * 1024 * 8192 + 3 * 4096 * 12288 + 4096 * 3 * 4096 + 32000 * 4096
    assert 0.5 < head["weight_bytes"] / layer < 0.54  # four bits, and a scale for 64
    assert head["kv_bytes_per_token"] == 8 * (2 * 128 * 2 + 4)  # a layer of the model's heads, in int16
    assert small["speeds"][0]["gain"] < head["speeds"][0]["gain"]
    assert "an EAGLE-3 head drafts: " in run("qwen3-8b", *FAST, "--draft", "eagle")[1]
    synth("smollm2-135m", tmp_path / "head", head=True, progress=False)
    found, named = (
        planned("smollm2-135m", *FAST, "--draft", each)["draft"] for each in (str(tmp_path / "head"), "eagle")
    )
    assert {**found, "name": named["name"]} == named
    assert "is no folder" in run("nothing", *FAST, "--draft", "eagle")[1]
    assert "no EAGLE-3 head drafts" in run("bge-small-en-v1.5", *FAST, "--draft", "eagle")[1]
    assert run("qwen3-8b", *FAST, "--draft", "qwen3.5-9b")[0] == 2


def test_a_layer_of_the_model_s_own_is_planned_and_other_tokens_are_refused(tmp_path: Path) -> None:
    described = {"max_position_embeddings": 2048}
    write_described(tmp_path / "own", PREDICTING, described, described_tensors(PREDICTING), "sym_int4")
    plan = planned(str(tmp_path / "own"), *FAST, "--context-tokens", "64")
    assert plan["draft"]["name"] == "its own layer"
    assert plan["draft"]["kv_bytes_per_token"] == 2 * (2 * 32 * 2 + 4)
    assert 0 < plan["draft"]["weight_bytes"] < plan["memory"]["weight_bytes"]
    for name in ("one", "other"):
        synth("smollm2-135m", tmp_path / name, layers=1, progress=False)
    tokenizer = json.loads((tmp_path / "other" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, output = run(str(tmp_path / "one"), *FAST, "--draft", str(tmp_path / "other"))
    assert status == 2
    assert "has another vocabulary than" in " ".join(output.split())
    assert run("llama3.1-8b", *FAST, "--draft", "qwen3-0.6b")[0] == 2


def test_the_text_has_speeds_memory_users_and_sources() -> None:
    status, output = run("qwen3-1.7b", *FAST, "--users", "20")
    assert status == 0, output
    words = " ".join(output.split())
    for expected in ("prompt of 512", "32 answers at 1,024", "best possible", "Memory of 412.3 GB", "What limits:",
                     "This machine serves 20 users.", "machines of the table do", "Assumed:", "one NUMA node a socket",
                     "worker.count 1, worker.max_concurrent_requests ", "asym_int4 and sym_int4 weights"):  # fmt: skip
        assert expected in words


def test_weights_that_no_share_was_fitted_to_are_a_guess() -> None:
    words = " ".join(run("qwen3-1.7b", *FAST, "--type", "int8")[1].split())
    assert "int8 weights were not: this is a guess." in words
    assert planned("qwen3-1.7b", *FAST, "--type", "int8")["is_type_measured"] is False
    assert planned("qwen3-1.7b", *FAST)["is_type_measured"] is True


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ({"macs_per_s": 40e9}, "a prompt of 578 tokens, as 1 of 20 is, takes"),
        ({"read_bytes_per_s": 2e9}, "a token of one answer alone takes"),
        ({"memory_bytes": 2_400_000_000}, "not even one request fits into the memory"),
    ],
)
def test_what_of_the_promise_nobody_gets_is_named(rates: dict[str, float], reason: str, tmp_path: Path) -> None:
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(machine(**rates, name="[slow]").to_dict()))
    words = " ".join(run("tinyllama-1.1b", "--machine", str(file))[1].split())
    assert f"No user gets that promise: {'' if 'memory_bytes' in rates else 'one alone breaks it; '}{reason}" in words
    assert "[slow]: 1 worker" in words


def test_json_has_what_the_text_has() -> None:
    plan = planned("qwen3-1.7b", *FAST, "--users", "100000")
    assert plan["users"]["users"] > 10
    assert plan["serves_wanted"] is False
    assert not any(candidate["serves"] for candidate in plan["candidates"])
    assert plan["speeds"][0]["expected_tokens_per_s"] < plan["speeds"][0]["best_tokens_per_s"]


def test_a_checkpoint_and_what_it_is_converted_to_demand_the_same(hf: Path, tmp_path: Path) -> None:
    converted = convert(hf, tmp_path / "int4", method="rtn", progress=False).folder
    ahead, packed = (read_demand(str(folder), None, None).matrices for folder in (hf, converted))
    assert ahead == packed
    sizes = sum(info.size_bytes for info in PackedFile(converted / FILE_NAME).matrices.values())
    assert packed.layer_bytes + packed.head_bytes + packed.other_bytes == sizes


def test_types_and_a_gguf(hf: Path, tmp_path: Path) -> None:
    half = read_demand(str(hf), None, None).matrices.layer_bytes
    whole = read_demand(str(hf), "int8", None).matrices.layer_bytes
    assert whole == pytest.approx(half * 8.25 / 4.25)
    gguf = write_gguf(tmp_path / "model.gguf", random_tensors(CONFIG), kind=GGMLQuantizationType.Q4_0)
    assert read_demand(str(gguf), None, None).matrices.type_name == "sym_int4 in groups of 32"


def test_a_machine_is_saved_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_rates, "measured_rates", lambda *_: machine_rates.NodeRates(40e9, 300e9, 350e9))
    file = tmp_path / "here.json"
    assert run("--save", str(file)) == (0, "")
    saved = Machine(**json.loads(file.read_text()))
    assert (saved.read_bytes_per_s, saved.macs_per_s, saved.is_measured) == (40e9, 300e9, True)
    assert saved.best_macs_per_s == 350e9
    plan = planned("smollm2-135m", "--machine", str(file), "--memory-gb", "8")
    assert plan["machine"]["memory_bytes"] == 8 << 30
    assert plan["machine"]["macs_per_s"] == 300e9


def test_a_machine_may_be_written_by_hand_as_toml(tmp_path: Path) -> None:
    lines = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else json.dumps(value)}"
        for name, value in machine().to_dict().items()
    ]
    (tmp_path / "m.toml").write_text("\n".join(lines))
    assert planned("smollm2-135m", "--machine", str(tmp_path / "m.toml"))["machine"] == machine().to_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qwen9", *FAST], "'qwen9' is no folder, no file, and none of the shapes smollm2-135m, "),
        (["qwen3-4b", "--machine", "epyc"], "machine 'epyc' is not one of epyc-7543, "),
        (["qwen3-4b", "--machine", "none.json"], "none.json: No such file or directory"),
        (["qwen3-4b", "--machine", "bad.json"], "bad.json: is neither JSON nor TOML of a machine: "),
        (["qwen3-4b", "--machine", "list.json"], "list.json: is no JSON object of a machine"),
        (["qwen3-4b", "--machine", "lacks.json"], "lacks.json lacks name, tier, "),
        (["mamba", *FAST], "model type 'mamba' is not supported; supported: llama"),
        (["empty", *FAST], "empty: has no config.json"),
        (["qwen3-4b", *FAST, "--users", "0"], "'--users'"),
        (["qwen3-4b", *FAST, "--users", "x"], "'--users'"),
        (
            ["qwen3-4b", *FAST, "--context-tokens", "40960"],
            "40960 + 36 + 264 tokens is too long: qwen3-4b was trained for",
        ),
        (
            ["qwen3-4b", *FAST, "--prompt-tokens", "999999999"],
            "is too long: qwen3-4b was trained for 40960; see --context",
        ),
        (["smollm2-135m", *FAST, "--group-size", "128"], "128"),
        (["qwen3-4b", *FAST, "--seconds-between", "0"], "must be above 0, not 0.0"),
        (["qwen3-4b", *FAST, "--seconds-between", "nan"], "must be above 0, not nan"),
        (["qwen3-4b", *FAST, "--memory-gb", "-3"], "--memory-gb must be above 0"),
        (["qwen3-4b", *FAST, "--memory-gb", "nan"], "--memory-gb must be above 0"),
        (["qwen3-4b", *FAST, "--kv-type", "int5"], "'int5' is not one of int16"),
        (["qwen3-4b", *FAST, "--type", "int5"], "'--type'"),
        (
            ["qwen3-4b", *FAST, "--type", "bf16"],
            "qwen3-4b with bf16 weights is not measured: the plan knows int4 and int8",
        ),
        (
            ["hf", *FAST, "--type", "fp32", "--context-tokens", "8", "--answer-tokens", "8"],
            "fp32 weights is not measured",
        ),
        (["qwen3-4b", *FAST, "--group-size", "7"], "group size 7 is not one of 32, 64, 128"),
        (["int4", *FAST, "--type", "int8"], "int4 is converted already: leave --type and --group-size out"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "lacks.json").write_text('{"nodes": 1}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "mamba").mkdir()
    (tmp_path / "mamba/config.json").write_text(json.dumps({**CONFIG, "model_type": "mamba"}))
    if arguments[0] == "int4":
        convert(hf, tmp_path / "int4", method="rtn", progress=False)
    status, output = run(*(str(hf) if each == "hf" else each for each in arguments))
    assert status == 2
    assert message in output
    assert output.startswith("redoubt: ") or "see redoubt" in output
    assert len(output.splitlines()) == 1
