import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from bench.conversations.command import (
    all_launches,
    first_result,
    has_drafts,
    has_words,
    in_one_line,
    main,
    make_plan,
    notes,
    stay_loaded,
)
from bench.conversations.data import DataError, read_conversations
from bench.conversations.launches import PEERS, VARIANTS, OwnSettings, own_launches, peer_launch
from bench.conversations.options import parse
from bench.conversations.rounds import WARM_UP
from bench.conversations.server import Launch
from bench.cores import default_threads
from bench.models import BenchModel
from bench.peers import InstallError, llama_server, llama_server_native, openvino_server, vllm_server
from bench.peers.http_server import HttpPeer, Sizes, announce, announced
from quant.conversion.synth import synth
from tests.engine.speculative.test_predictor_native import DENSE as PREDICTING
from tests.kernels.tiny_model import described_tensors, write_described

MODULES = (llama_server, llama_server_native, openvino_server, vllm_server)
SIZES = Sizes(threads=2, slots=16, context_tokens=1000, kv_bytes=(5 << 29) + 1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "random"
    synth("smollm2-135m", out, progress=False)
    return out


def words_folder(packed: Path, folder: Path) -> Path:
    """A folder of models in which the embedded one has a tokenizer."""
    words = folder / "words" / "smollm2-135m-instruct"
    words.mkdir(parents=True, exist_ok=True)
    (words / "tokenizer.json").write_bytes((packed / "tokenizer.json").read_bytes())
    return words.parent


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    messages = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three four five"}]
    path.write_text("\n".join(json.dumps({"id": number, "messages": messages}) for number in range(20)))
    return path


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "needs --model, MODEL or --url"),
        (["--model", "embedded", "--url", "http://a"], "either --url or --model"),
        (["--url", "http://a", "--threads", "2"], "--threads is of servers that this bench starts"),
        (["--model", "embedded", "--threads", "2", "--workers", "3"], "too few for 3 workers"),
        (["--model", "embedded", "--in-turn", "--side-by-side"], "not allowed with"),
        (["nowhere"], "nowhere is no folder of a converted model"),
        (["--model", "embedded", "--servers", "redoubt,none"], "'redoubt,none' is not a list of redoubt, llama_cpp"),
        (["--model", "embedded", "--rate", "0"], "must be above 0"),
        (["--model", "embedded", "--rate", "1", "--at-once", "2"], "not allowed with"),
        (["--model", "embedded", "--servers", "llama_cpp", "--variants", "kv_int8"], "not among --servers"),
        (["--url", "http://a", "--variants", "kv_int8"], "alone"),
        (["--url", "http://a", "--draft", "nowhere"], "--draft is of one model"),
        (["--url", "http://a", "--no-prefix-cache"], "--no-prefix-cache is of servers that this bench starts"),
        (["--url", "http://a", "--no-guesses"], "--no-guesses is of servers"),
        (["--url", "http://a", "--kv-type", "int8"], "--kv-type is of servers"),
        (["--url", "http://a", "--workers", "2"], "--workers is of servers"),
        (["--url", "http://a", "--slots", "2"], "--slots is of servers"),
        (["--url", "http://a", "--in-turn"], "--in-turn is of servers"),
        (["--model", "embedded", "--servers", "llama_cpp", "--workers", "2"], "--workers is of redoubt, which is not"),
        (["--model", "embedded", "--variants", "kv_int8", "--side-by-side"], "--side-by-side is not for --variants"),
        (["--model", "embedded", "--probe-s", "5"], "--probe-s needs --find-rate"),
        (["--model", "embedded", "--draft", "nowhere"], "--draft: nowhere is no folder of a converted model"),
    ],
)
def test_wrong_options_are_named_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--data", "x", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_wrong_data_and_a_silent_url_are_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_text("a,b")
    assert main(["--data", str(tmp_path / "bad"), "--url", "http://127.0.0.1:9"]) == 2
    assert "line 1 is no JSON" in capsys.readouterr().err
    assert main(["--data", str(data), "--url", "http://127.0.0.1:9"]) == 2
    assert "lists no model" in capsys.readouterr().err


def test_folders_are_converted_models_that_answer(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, source = tmp_path / "head", tmp_path / "source"
    synth("smollm2-135m", head, head=True, progress=False)
    assert not (head / "tokenizer.json").exists()
    assert parse(["--data", "x", str(packed), "--draft", str(head)]).draft == head
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_bytes((packed / name).read_bytes())
    assert parse(["--data", "x", "--url", "http://a", str(source)]).model_folder == source
    with pytest.raises(SystemExit):
        parse(["--data", "x", str(source)])
    (head / "tokenizer.json").write_bytes((packed / "tokenizer.json").read_bytes())
    with pytest.raises(SystemExit):
        parse(["--data", "x", str(head)])
    error = capsys.readouterr().err
    assert "source is no folder of a converted model" in error
    assert "head is an encoder or an EAGLE-3 head" in error


def test_drafts_are_left_out_where_there_are_none(data: Path, packed: Path, tmp_path: Path) -> None:
    own = OwnSettings()
    assert not has_drafts([packed], own)
    assert has_drafts([packed], replace(own, draft=packed))
    predicting = tmp_path / "predicting"
    write_described(predicting, PREDICTING, {}, described_tensors(PREDICTING), "sym_int4")
    assert has_drafts([packed, predicting], own)
    options = parse(["--data", str(data), str(packed), "--variants", "no_drafts,kv_int8", "--conversations", "3"])
    options.models = words_folder(packed, tmp_path)
    options.rounds = 2
    plan = make_plan(options, read_conversations(data), packed)
    launches, missing = all_launches(options, None, packed, plan, tmp_path)
    assert [launch.name for launch in launches] == ["redoubt", "redoubt_kv_int8"]
    assert "has no drafts in this run" in missing["redoubt_no_drafts"]


def test_what_can_not_be_sent_is_said_before_anything_starts(
    data: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--models", str(words_folder(packed, tmp_path)), "--threads", "1"]
    long = tmp_path / "long"
    messages = [{"role": "user", "content": "many " * 2000}, {"role": "assistant", "content": "one"}]
    long.write_text("\n".join(json.dumps({"messages": messages}) for _ in range(20)))
    few = ["--conversations", "2", "--rounds", "2"]
    assert main(["--data", str(long), str(packed), *few, *models, "--max-prompt-tokens", "10000"]) == 2
    assert "are too long for random, whose context has" in capsys.readouterr().err
    other = tmp_path / "other"
    synth("smollm2-135m", other, progress=False)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert main(["--data", str(data), str(packed), *few, *models, "--draft", str(other)]) == 2
    assert "other has another vocabulary than random" in capsys.readouterr().err
    (other / "tokenizer.json").write_text("{}")
    assert main(["--data", str(data), str(other), *few, *models]) == 2
    assert "is no tokenizer" in capsys.readouterr().err
    assert main(["--data", str(data), str(packed), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "can't be written" in error
    assert error.count("\n") == 1


def test_a_log_s_end_is_one_line() -> None:
    assert in_one_line("ended with status 2: a\nb\n\nredoubt: no memory\n") == (
        "ended with status 2: a ... redoubt: no memory"
    )
    assert in_one_line("needs memory") == "needs memory"


def test_random_weights_are_sent_token_ids(data: Path, packed: Path, tmp_path: Path) -> None:
    assert not has_words(packed)
    words = tmp_path / "models" / "smollm2-135m-instruct"
    words.mkdir(parents=True)
    (words / "tokenizer.json").write_bytes((packed / "tokenizer.json").read_bytes())
    options = ["--data", str(data), str(packed), "--models", str(words.parent), "--conversations", "3"]
    plan = make_plan(parse([*options, "--rounds", "2"]), read_conversations(data), packed)
    assert len(plan.selection.conversations) == WARM_UP + 6
    request = plan.selection.conversations[0].requests[0]
    assert len(request.token_ids) == len("one two")
    assert request.answer_tokens == len("three four five")
    with pytest.raises(DataError, match=f"20 conversations within the bounds, and {WARM_UP + 30} are needed"):
        make_plan(parse([*options, "--rounds", "10"]), read_conversations(data), packed)


def test_our_service_and_its_variants(packed: Path, tmp_path: Path) -> None:
    own = OwnSettings(workers=2, draft=packed)
    launches = own_launches([packed], own, tuple(VARIANTS), SIZES, tmp_path, tmp_path)
    names = [launch.name for launch in launches]
    assert names == [
        "redoubt", "redoubt_no_guesses", "redoubt_no_prefix_cache", "redoubt_kv_int8", "redoubt_no_drafts"
    ]  # fmt: skip
    normal, *variants = (
        yaml.safe_load((tmp_path / f"{name}.yaml").read_text())["applications"][0]["args"] for name in names
    )
    assert normal["worker"]["count"] == 2
    assert normal["worker"]["threads"] == normal["worker"]["cpus_per_worker"] == 1
    assert normal["engine"]["kv_memory_bytes"] == SIZES.kv_bytes // 2
    assert normal["worker"]["max_concurrent_requests"] == 8
    assert "guess_tokens" not in normal["engine"]
    assert variants[0]["engine"] == normal["engine"] | {"guess_tokens": 0}
    assert variants[1]["engine"] == normal["engine"] | {"prefix_cache": False}
    assert variants[2]["engine"] == normal["engine"] | {"kv_type": "int8"}
    assert variants[3]["engine"] == normal["engine"] | {"draft_tokens": 0}
    assert launches[0].command[-2:] == ("--draft", str(packed))
    assert launches[0].settings.count(f"{packed.name} drafts") == 1
    assert "drafts off" in launches[-1].settings
    assert launches[0].needed_bytes - launches[-1].needed_bytes == SIZES.kv_bytes  # the draft model's, as large here
    assert launches[0].needed_bytes > SIZES.kv_bytes
    assert launches[0].command[:3] == ("setpriv", "--pdeathsig", "TERM")


def test_workers_have_the_cores_of_their_threads(packed: Path, tmp_path: Path) -> None:
    eight = replace(SIZES, threads=8)
    own_launches([packed], OwnSettings(workers=2), (), eight, tmp_path, tmp_path)
    worker = yaml.safe_load((tmp_path / "redoubt.yaml").read_text())["applications"][0]["args"]["worker"]
    assert worker["threads"] == worker["cpus_per_worker"] == 4


def test_models_served_together_share_threads_and_memory(packed: Path, tmp_path: Path) -> None:
    (launch,) = own_launches([packed, packed], OwnSettings(), (), SIZES, tmp_path, tmp_path)
    arguments = yaml.safe_load((tmp_path / "redoubt.yaml").read_text())["applications"][0]["args"]
    assert (arguments["worker"]["count"], arguments["worker"]["threads"]) == (1, 1)
    assert arguments["engine"]["kv_memory_bytes"] == SIZES.kv_bytes // 2
    assert (launch.models, launch.workers, list(launch.command).count("--model")) == (2, 2, 2)


def test_further_models_are_of_our_service_alone(data: Path, packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--data", str(data), str(packed), "--also", str(packed), "--threads", "2"])
    assert options.also == [packed]
    for more in (["--model", "embedded"], ["--url", "http://a", str(packed)], [str(packed), "--threads", "1"]):
        with pytest.raises(SystemExit):
            parse(["--data", str(data), "--also", str(packed), *more])
    assert "--threads 1 are too few for 2 workers" in capsys.readouterr().err


def test_a_url_with_a_model_s_folder_is_measured(data: Path, packed: Path) -> None:
    options = parse(["--data", str(data), "--url", "https://chat.example.com", str(packed), "--conversations", "3"])
    assert (options.model_folder, options.threads) == (packed, None)
    words = options.models = packed.parent / "words"
    (words / "smollm2-135m-instruct").mkdir(parents=True, exist_ok=True)
    (words / "smollm2-135m-instruct" / "tokenizer.json").write_bytes((packed / "tokenizer.json").read_bytes())
    plan = make_plan(options, read_conversations(data), packed)
    result = first_result(options, plan, read_conversations(data), "model")
    assert not {"cpu", "commit", "threads"} & set(result)
    assert result["client_cpu"]
    assert "chat.example.com" not in json.dumps(result)
    assert str(data.parent) not in json.dumps(result)


def test_threads_are_one_nodes_cores_unless_told(data: Path) -> None:
    assert parse(["--data", str(data), "--model", "embedded"]).threads == default_threads()
    assert parse(["--data", str(data), "--model", "embedded", "--threads", "7"]).threads == 7


def test_ours_beside_peers_is_started_for_its_turn(data: Path, packed: Path, tmp_path: Path) -> None:
    ours = own_launches([packed], OwnSettings(), (), SIZES, tmp_path, tmp_path)
    ours = [replace(ours[0], needed_bytes=0)]
    peer = replace(ours[0], name="llama_cpp", workers=0, may_be_stopped=True)

    def stays(launches: list[Launch], *more: str) -> bool:
        return stay_loaded(parse(["--data", str(data), "--model", "embedded", *more]), launches)

    assert stays(ours)
    assert not stays(ours, "--in-turn")
    assert not stays([*ours, peer])
    assert stays([*ours, peer], "--side-by-side")
    assert stays([peer, peer])
    assert not stays([peer, peer], "--in-turn")
    assert not stays([*ours, replace(peer, needed_bytes=1 << 60)], "--side-by-side")


def test_short_rounds_are_noted(data: Path, packed: Path) -> None:
    def noted(*more: str) -> list[str]:
        options = parse(["--data", str(data), str(packed), "--models", str(packed.parent / "words"), *more])
        return notes(options, make_plan(options, read_conversations(data), packed))

    words = packed.parent / "words" / "smollm2-135m-instruct"
    words.mkdir(parents=True, exist_ok=True)
    (words / "tokenizer.json").write_bytes((packed / "tokenizer.json").read_bytes())
    few = ["--conversations", "5", "--rounds", "3"]
    assert "5 conversations for 2 clients" in noted("--at-once", "2", *few)[0]
    assert noted("--rate", "1", *few) == []
    (note,) = noted("--rate", "1", "--conversations", "5", "--rounds", "2")
    assert "fewer than 3 rounds" in note
    alone = ["--draft", str(packed), *few]
    assert noted("--rate", "1", *alone) == []
    options = parse(["--data", str(data), "--model", "embedded", "--rate", "1", *alone])
    options.models = packed.parent / "words"
    (note,) = notes(options, make_plan(options, read_conversations(data), packed))
    assert note == "random drafts for our service alone, and for no peer"


@pytest.mark.parametrize("peer", [module.PEER for module in MODULES])
def test_peers_get_threads_slots_and_port(peer: HttpPeer, tmp_path: Path) -> None:
    built = tmp_path / "native" / "llama-server"
    built.parent.mkdir()
    built.write_text("#!/bin/sh\necho version: 1")
    built.chmod(0o755)
    start = peer.start(tmp_path / "bin" / "python", Path("model"), 4711, SIZES)
    if peer.name in ("vllm_cpu", "openvino_genai"):  # the others' is slots times their tokens
        assert "3" in (start.environment.get("VLLM_CPU_KVCACHE_SPACE"), start.command[-1])
    assert "4711" in start.command
    assert "16" in start.command
    assert "2" in start.command or start.environment["OMP_NUM_THREADS"] == "2"


def test_openvino_computes_in_the_faster_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (("bf16", "f32"), ("f32",)):
        monkeypatch.setattr(openvino_server, "precisions", lambda there=there: there)
        start = openvino_server.PEER.start(tmp_path / "python", Path("model"), 4711, SIZES)
        assert start.command[start.command.index("--precision") + 1] == there[0]
        assert f"weights, {there[0]}," in start.settings


def test_a_server_that_was_laid_there_by_hand_is_not_removed(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    model = BenchModel("1.1b", tmp_path / "packed", gguf, tmp_path / "hf")
    binary = tmp_path / llama_server_native.NAME / "native" / "llama-server"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho version: 1")
    binary.chmod(0o755)
    launch = peer_launch("llama_cpp_native", model, SIZES, tmp_path)
    assert binary.exists()
    assert str(binary) in launch.command
    assert launch.needed_bytes >= SIZES.kv_bytes


def test_every_peer_has_its_file() -> None:
    files = {Path(module.__file__ or "").stem for module in MODULES}
    assert set(PEERS.values()) == files


def test_a_server_that_nobody_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"lay a llama-server .*native/llama-server"):
        llama_server_native.PEER.start(tmp_path / "bin" / "python", Path("model"), 4711, SIZES)


def test_what_a_server_says_of_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    announce(build="AVX2", kv="split")
    log = tmp_path / "log"
    log.write_text("noise\n" + capsys.readouterr().out + "more\n")
    assert announced(log) == {"build": "AVX2", "kv": "split"}
