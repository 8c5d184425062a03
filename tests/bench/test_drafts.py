"""`redoubt bench drafts`: drafts are right as often as is asked for, whatever the model's own layer drafts."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.model_drafts import DraftCost, ModelDrafts
from app.engine.speculative.predictor_drafts import EAGLE, MTP, PredictorDrafts
from app.engine.speculative.step_cost import StepCost
from bench import drafts_peer
from bench.drafts import main
from bench.drafts_models import load, predicted_s
from bench.drafts_pair import kind_of
from bench.drafts_peer import PeerRounds
from bench.drafts_rig import RatedDrafts, Rig, Run, Spent, compared, counted
from quant.conversion.synth import synth
from tests.engine.speculative.test_predictor_native import DENSE, HEAD, MODELS
from tests.kernels.tiny_model import described_tensors, write_described

PROMPTS = [tuple(range(number, 40 + number)) for number in range(2)]
STEP_S = {"1": 1.0, "2": 1.0, "4": 1.2, "8": 2.0}
CONFIG = {"max_position_embeddings": 2048}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def runner(folder: Path) -> NativeRunner:
    decoder = MODELS["hybrid"]
    write_described(folder / "model", decoder, CONFIG, described_tensors(decoder), "sym_int4")
    return load(folder / "model", 1, predicts=True)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned must not depend on how long the steps of a tiny model take."""
    monkeypatch.setattr(StepCost, "record", lambda *_: None)
    monkeypatch.setattr(DraftCost, "record", lambda *_: None)
    monkeypatch.setattr(NativeRunner, "predictor_share", 0.02)


@pytest.mark.usefixtures("steady")
def test_the_rate_of_right_drafts_is_set(runner: NativeRunner, folder: Path) -> None:
    assert predicted_s(runner) > 0
    base = Rig(load(folder / "model", 1), None)
    texts = base.run(PROMPTS, 200, drafts=False).texts
    rate, by_prompt = 0.85, dict(zip(PROMPTS, texts, strict=True))
    drafts = RatedDrafts(PredictorDrafts(runner), rate, by_prompt, runner.vocab_size)
    rig = Rig(runner, drafts)
    without_s = {rows: seconds - 0.5 for rows, seconds in STEP_S.items()}
    default, one = compared(
        rig, drafts.most_tokens, [PROMPTS], 200, 1, STEP_S, depths=(1,), base=base, without_s=without_s
    )
    rig.close()
    base.close()
    assert abs(one["right"] / one["drafted"] - rate) < 0.1
    assert default["steps"] < one["steps"] < 0.7 * 200
    assert default["counted"]["drafting_s"] > 0
    assert default["counted"]["layer_s"] == pytest.approx(0.5 * default["steps"])
    assert default["counted"]["rows_s"] > one["counted"]["rows_s"] > 0


@pytest.mark.usefixtures("steady")
def test_a_draft_model_reads_the_prompts_of_every_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelDrafts, "_follow_s", lambda _: 1e-9)  # it repays itself in any case
    decoder = replace(DENSE, predictor=None)
    write_described(folder / "dense", decoder, CONFIG, described_tensors(decoder), "sym_int4")
    target, draft = (load(folder / "dense", 1) for _ in range(2))
    rig = Rig(target, DraftModel(draft, target_vocab_size=96, most_tokens=4, cost_share=0.1))
    prompts = [tuple(number % 96 for number in range(128))]
    runs = [rig.run(prompts, 24, drafts=True) for _ in range(3)]
    rig.close()
    assert all(run.spent.following_s > 0 for run in runs)
    assert all(run.drafted > 0 for run in runs)


def test_what_drafts_cost_is_counted() -> None:
    spent = Spent(2.0, 3.0, Counter({(1, 3): 10, (1, 10): 1}))
    run = Run(100, 90.0, 10.0, (), 95, 27, 5, spent)
    assert counted(run, 1, STEP_S) == {
        "drafting_s": 2.0, "following_s": 3.0, "rows_s": 10 * 0.1 + 1.4, "layer_s": 0.0, "saved_s": 5.0,
        "whole_s": 100.0,
        "lost_share": 0.074, "ratio": 0.976,
    }  # fmt: skip
    assert counted(run, 4, STEP_S)["saved_s"] == 1.5


def test_what_a_layer_adds_to_all_steps_is_counted() -> None:
    run = Run(100, 90.0, 10.0, (), 95, 27, 5, Spent(2.0))
    without_s = {"1": 0.9, "2": 0.9, "4": 1.1, "8": 2.1}
    found = counted(run, 1, STEP_S, without_s)
    assert (found["layer_s"], found["saved_s"], found["lost_share"]) == (9.5, 4.5, 0.115)
    assert found["ratio"] == 0.93
    assert counted(run, 8, STEP_S, without_s)["layer_s"] == 0


class FakeRig:
    """Its answers take half as long with drafts."""

    def __init__(self, played: list[int | str], text: int = 1) -> None:
        self.played = played
        self._text = text
        self._most = 0

    def let_draft(self, most_tokens: int) -> None:
        self._most = most_tokens

    def run(self, prompts: Sequence[Any], new_tokens: int, *, drafts: bool, temperature: float = 0.0) -> Run:
        self.played.append(self._most if drafts else 0)
        text = self._text if drafts else 1
        return Run(new_tokens, 5.0 if drafts else 10.0, 1.0, ((text,),), 10, 3, 2, Spent())


def test_rounds_take_turns_and_each_begins_with_another_kind() -> None:
    played: list[int | str] = []
    rig = cast("Rig", FakeRig(played))
    rows = compared(rig, 8, [[(1,)]], 16, 3, STEP_S, depths=(2,), beside=lambda: played.append("peer"))
    assert played == [8, 0, 8, 2, "peer", 8, 2, 0, "peer", 2, 0, 8, "peer"]
    assert [(row["most_tokens"], row["ratio"], row["drafted"]) for row in rows] == [(8, 2.0, 9), (2, 2.0, 9)]
    assert (rows[0]["whole_ratio"], rows[0]["prompt_ratio"]) == (1.833, 1.0)
    with pytest.raises(RuntimeError, match="changed a text"):
        compared(cast("Rig", FakeRig(played, text=2)), 8, [[(1,)]], 16, 1, STEP_S)


def test_the_peer_s_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def server(python: Path, target: Path, threads: int, context: int, options: Sequence[str]) -> Iterator[str]:
        yield " ".join(options)

    draft = f"--draft {Path('d').absolute()}"  # the server's folder is another one
    speeds = {"": 10.0, draft: 5.0, f"{draft} --draft-tokens 8": 20.0}
    monkeypatch.setattr(drafts_peer, "server", server)
    monkeypatch.setattr(
        drafts_peer, "decode_speed", lambda url, *_: {"tokens_per_s": speeds[url], "drafted": 4, "right": 1}
    )
    options = type("Options", (), {"ggufs": (Path("t"), Path("d")), "peer": Path("python"), "threads": 2})()
    peer = PeerRounds(options, [(1,)], 16, 1024, 0.0)
    for _ in range(2):
        peer.play()
    assert [(one["drafts"], one["ratios"], one["drafted"]) for one in peer.found()] == [
        ("without", [1.0, 1.0], 8),
        ("default", [0.5, 0.5], 8),
        ("8 at once", [2.0, 2.0], 8),
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--predicts", "--head"], "not allowed with"),
        (["--predicts", "--draft", "qwen3-4b"], "--draft is without --predicts"),
        (["--pair", "a", "b", "--rates", "5"], "--rates is of random weights"),
        (["--pair", "a", "b", "c"], "--pair takes"),
        (["--rates", "101"], "at most 100"),
        (["--tokens", "4"], "at least 8"),
        (["--itself", "a", "--peer", "p", "--streams", "4"], "--streams needs 1"),
        (["--ggufs", "a", "b"], "--ggufs is for --peer"),
    ],
)
def test_wrong_options_are_named_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target", "none"], "shape 'none' is not one of"),
        (["--target", "smollm2-135m", "--layers", "1", "--predicts"], "without multi-token prediction"),
        (["--pair", "nowhere"], "nowhere is no folder of a converted model"),
        (["--itself", "nowhere.gguf"], "nowhere.gguf"),
        (["--pair", "nowhere", "--out", "/"], "--out: / can't be written"),
    ],
)
def test_what_can_not_be_measured_is_one_line(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_a_pair_may_be_a_head_and_a_layer_of_its_own(folder: Path, runner: NativeRunner) -> None:
    head_config = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "vocab_size": 96}
    write_described(folder / "head", HEAD, head_config, described_tensors(HEAD), "sym_int4")
    write_described(
        folder / "target",
        MODELS["eagle"],
        head_config | {"architectures": []},
        described_tensors(MODELS["eagle"]),
        "sym_int4",
    )
    assert kind_of(folder / "target", [folder / "head"]) == EAGLE
    assert kind_of(folder / "model", []) == MTP
    with pytest.raises(ValueError, match="has no layer of multi-token prediction"):
        kind_of(folder / "target", [])


def test_a_pair_is_measured_with_its_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("large", "small"):
        synth("smollm2-135m", folder / name, layers=2, progress=False)
    arguments = ["--pair", str(folder / "large"), str(folder / "small"), "--streams", "2", "--tokens", "8"]
    assert main([*arguments, "--prompts", "64", "--threads", "1", "--rounds", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["command"].startswith("redoubt bench drafts --pair large small --streams 2")
    assert result["measured_at"]
    greedy, drawn = result["answers"]
    assert (greedy["temperature"], drawn["temperature"], greedy["answer_tokens"]) == (0.0, 1.0, 8)
    assert set(greedy["counted"]) >= {"drafting_s", "following_s", "rows_s", "ratio"}
