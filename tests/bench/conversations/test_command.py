import json
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from bench.conversations.command import has_words, main, make_plan
from bench.conversations.data import DataError, read_conversations
from bench.conversations.launches import PEERS, VARIANTS, OwnSettings, own_kv_bytes, own_launches
from bench.conversations.options import parse
from bench.conversations.rounds import WARM_UP
from bench.peers import InstallError, llama_server, llama_server_native, openvino_server, vllm_server
from bench.peers.http_server import HttpPeer, Sizes, announce, announced
from quant.conversion.synth import synth

MODULES = (llama_server, llama_server_native, openvino_server, vllm_server)
SIZES = Sizes(threads=2, slots=16, context_tokens=1000)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "random"
    synth("smollm2-135m", out, progress=False)
    return out


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
        (["--model", "embedded", "--url", "http://a"], "needs --model, MODEL or --url"),
        (["nowhere"], "nowhere is no folder of a converted model"),
        (["--model", "embedded", "--servers", "redoubt,none"], "'redoubt,none' is not a list of redoubt, llama_cpp"),
        (["--model", "embedded", "--rate", "0"], "must be above 0"),
        (["--model", "embedded", "--rate", "1", "--at-once", "2"], "not allowed with"),
        (["--model", "embedded", "--servers", "llama_cpp", "--variants", "kv_int8"], "not among --servers"),
        (["--url", "http://a", "--variants", "kv_int8"], "alone"),
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
    launches = own_launches(packed, OwnSettings(workers=2), tuple(VARIANTS), SIZES, tmp_path, tmp_path)
    names = [launch.name for launch in launches]
    assert names == ["redoubt", "redoubt_no_guesses", "redoubt_no_prefix_cache", "redoubt_kv_int8"]
    normal, *variants = (
        yaml.safe_load((tmp_path / f"{name}.yaml").read_text())["applications"][0]["args"] for name in names
    )
    assert normal["worker"]["count"] == 2
    assert normal["worker"]["threads"] == 1
    assert normal["worker"]["max_concurrent_requests"] == 8
    assert "guess_tokens" not in normal["engine"]
    assert variants[0]["engine"] == normal["engine"] | {"guess_tokens": 0}
    assert variants[1]["engine"] == normal["engine"] | {"prefix_cache": False}
    assert variants[2]["engine"] == normal["engine"] | {"kv_type": "int8"}
    assert launches[0].needed_bytes > own_kv_bytes(packed, SIZES)


def test_memory_for_keys_and_values_holds_all_slots(packed: Path) -> None:
    config = json.loads((packed / "config.json").read_text())
    token_bytes = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    many = Sizes(threads=2, slots=64, context_tokens=4000)
    assert own_kv_bytes(packed, many) >= 64 * 4000 * token_bytes
    assert own_kv_bytes(packed, SIZES) == 1 << 30


@pytest.mark.parametrize("peer", [module.PEER for module in MODULES])
def test_peers_get_threads_slots_and_port(peer: HttpPeer, tmp_path: Path) -> None:
    built = tmp_path / "native" / "llama-server"
    built.parent.mkdir()
    built.write_text("#!/bin/sh\necho version: 1")
    built.chmod(0o755)
    start = peer.start(tmp_path / "bin" / "python", Path("model"), 4711, SIZES)
    assert "4711" in start.command
    assert "16" in start.command
    assert "2" in start.command or start.environment["OMP_NUM_THREADS"] == "2"


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
