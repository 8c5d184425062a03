import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.common import ROOT
from bench.compare import MOST_TIMES, Comparison, shortened
from bench.compare_table import table
from bench.limits import Demand
from bench.process import Contender, CrashError
from bench.rates import Rates
from bench.work import About, Work, works

# A contender that needs a second per token, or half of it in its variant "good"; one that dies at decoding; one that
# refuses it; one that never answers.
PROCESS = """
import sys, threading
from bench.work import About, NotSupportedError, serve, take_stdout

kind = sys.argv[1]

def measure(work, variant):
    print("noise of a library")
    if work.kind == "decode" and kind == "mortal":
        raise SystemExit("no more")
    if work.kind == "decode" and kind == "shy":
        raise NotSupportedError("one at a time")
    if kind == "mute":
        threading.Event().wait()
    return work.tokens * (0.5 if variant == "good" else 1.0)

variants = ("bad", "good") if kind == "fast" else ("bad",)
serve(About(version="1", settings="none", variants=variants, load_s=2.0), measure, take_stdout())
"""


class NoBar:
    def set_description(self, text: str) -> None:
        pass

    def write(self, text: str, file: object) -> None:
        pass

    def update(self, steps: int = 1) -> None:
        pass


def contender(kind: str, folder: Path, timeout_s: float = 240) -> Contender:
    one = Contender(kind, [sys.executable, "-c", PROCESS, kind], ROOT, folder / f"{kind}.log", timeout_s)
    one.start()
    return one


def test_works_count_their_tokens() -> None:
    prefill, one, eight, long, after = works((512,), 128, 64, [1, 8], [4096])
    assert (prefill.tokens, one.tokens, eight.tokens, long.tokens, after.tokens) == (512, 64, 512, 4096, 64)
    names = ["prefill 512", "decode 1 at 128", "decode 8 at 128", "prefill 4096", "decode 1 at 4096"]
    assert [work.name for work in (prefill, one, eight, long, after)] == names


def test_tuning_works_are_of_the_same_kind_and_short() -> None:
    assert shortened(Work("prefill", 1, 8192, 0)) == Work("prefill", 1, 1024, 0)
    assert shortened(Work("decode", 32, 128, 64)) == Work("decode", 32, 32, 8)
    assert shortened(Work("decode", 1, 5, 4)) == Work("decode", 1, 5, 4)


def test_the_best_variant_is_compared_and_crashes_and_refusals_are_results(tmp_path: Path) -> None:
    todo = works((10,), 5, 4, [1, 2])
    kinds = ("fast", "slow", "mortal", "shy")
    contenders = [contender(kind, tmp_path) for kind in kinds]
    try:
        comparison = Comparison(contenders, todo, repeats=2)
        for turn in range(comparison.turns()):
            comparison.play(turn, NoBar())
    finally:
        for one in contenders:
            one.stop()
    fast, slow, mortal, shy = map(comparison.figures, contenders)
    rounds = {"median": 2.0, "rounds": [2.0, 2.0], "first": [2.0, 2.0]}
    assert fast["results"]["decode 2 at 5"] == {**rounds, "variant": "good"}
    ratios = {"of_medians": 2.0, "lowest": 2.0, "highest": 2.0, "first": 2.0}
    assert comparison.ratios("fast", "slow")["prefill 10"] == ratios
    assert "no more" in comparison.crashes[0]["reason"]
    assert mortal["results"]["prefill 10"]["median"] == 1.0  # it was started again
    assert mortal["results"]["decode 1 at 5"] == {"none": "crashed"}
    assert shy["results"]["decode 1 at 5"] == {"none": "one at a time"}
    assert set(comparison.ratios("fast", "shy")) == {"prefill 10"}
    assert "median" in slow["results"]["decode 1 at 5"]


def test_another_one_begins_each_round(tmp_path: Path) -> None:
    four: list[Contender] = [Waking(tmp_path) for _ in range(4)]
    comparison = Comparison(four, [], repeats=3)
    orders = [[four.index(one) for one in comparison.order(turn)] for turn in (1, 2, 3)]
    assert orders == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]
    comparison = Comparison(four[:2], [], repeats=3)
    assert [comparison.order(turn)[0] for turn in (1, 2, 3)] == [four[0], four[1], four[0]]
    comparison = Comparison(four, [], repeats=2)
    assert [comparison.order(turn)[0] for turn in (1, 2)] == [four[0], four[2]]


class Waking(Contender):
    """Needs four seconds for a work the first time in a turn, then one."""

    def __init__(self, folder: Path) -> None:
        super().__init__("waking", (), ROOT, folder / "log", 1.0)
        self.about = About("1", "none", ("",), 0.0)
        self.times = 0

    def measure(self, work: Work, variant: str) -> float:
        self.times += 1
        return 4.0 if self.times % MOST_TIMES == 1 else 1.0


def test_the_first_time_in_a_turn_is_apart(tmp_path: Path) -> None:
    waking = Waking(tmp_path)
    comparison = Comparison([waking], works((8,), 5, 4, []), repeats=3)
    for turn in range(comparison.turns()):
        comparison.play(turn, NoBar())
    expected = {"median": 8.0, "rounds": [8.0] * 3, "first": [2.0] * 3, "variant": ""}
    assert comparison.figures(waking)["results"] == {"prefill 8": expected}


class Disturbed(Contender):
    """Its variant "good" takes half of the time of "bad", but is slowed when it is tried for the first time."""

    def __init__(self, folder: Path) -> None:
        super().__init__("disturbed", (), ROOT, folder / "log", 1.0)
        self.about = About("1", "none", ("good", "bad"), 0.0)
        self.times = 0

    def measure(self, work: Work, variant: str) -> float:
        self.times += 1
        return 8.0 if self.times <= MOST_TIMES else {"good": 1.0, "bad": 2.0}[variant]


def test_a_burst_chooses_no_variant(tmp_path: Path) -> None:
    disturbed = Disturbed(tmp_path)
    comparison = Comparison([disturbed], works((8,), 5, 4, []), repeats=1)
    for turn in range(comparison.turns()):
        comparison.play(turn, NoBar())
    assert comparison.figures(disturbed)["results"]["prefill 8"]["variant"] == "good"


def test_whoever_is_not_measured_is_stopped(tmp_path: Path) -> None:
    fast = contender("fast", tmp_path)
    assert fast._process is not None
    status = Path(f"/proc/{fast._process.pid}/status")
    assert "State:\tT (stopped)" in status.read_text()
    assert fast.measure(Work("prefill", 1, 3, 0), "bad") == 3.0
    assert "State:\tT (stopped)" in status.read_text()
    fast.stop()
    assert not status.exists()


def test_a_process_that_does_not_start_is_a_crash(tmp_path: Path) -> None:
    broken = Contender("broken", ["sh", "-c", "echo why >&2; false"], tmp_path, tmp_path / "log", 60)
    with pytest.raises(CrashError, match="has ended with status 1; its last output: why"):
        broken.start()
    absent = Contender("absent", [str(tmp_path / "nothing")], tmp_path, tmp_path / "log", 60)
    with pytest.raises(CrashError, match=r"has ended with status 127; its last output: .*nothing"):
        absent.start()


def test_a_process_without_an_answer_is_a_crash(tmp_path: Path) -> None:
    mute = contender("mute", tmp_path)
    mute._timeout_s = 0.0
    with pytest.raises(CrashError, match="gave no answer"):
        mute.measure(Work("prefill", 1, 3, 0), "bad")


DEMAND = Demand(
    layer_weights=1000, head_weights=100, read_bytes=lambda _: 550, kv_bytes_per_token=10.0, attention_macs_per_key=2
)


def test_limits_are_the_larger_of_two_demands() -> None:
    assert DEMAND.bytes_and_macs(Work("prefill", 1, 4, 0)) == (550 + 40, 4000 + 100 + 10 * 2)
    # Two streams after 3 tokens, 2 steps: 4 and 5 keys each.
    decode = Work("decode", 2, 3, 2)
    assert DEMAND.bytes_and_macs(decode) == (2 * 550 + 18 * 10, 4 * 1100 + 18 * 2)
    with_experts = replace(DEMAND, read_bytes=lambda tokens: 550 + 10 * tokens)
    assert with_experts.bytes_and_macs(decode)[0] == 2 * 570 + 18 * 10, "two tokens a step"
    assert with_experts.bytes_and_macs(Work("prefill", 1, 4, 0))[0] == 590 + 40
    assert DEMAND.limit_tokens_per_s(decode, Rates(1280.0, 1e9, "vnni")) == (4.0, "read")
    assert DEMAND.limit_tokens_per_s(decode, Rates(1e9, 4436.0, "vnni")) == (4.0, "compute")
    assert DEMAND.limit_tokens_per_s(decode, Rates(1280.0, 0.0, "fma_fp32")) == (4.0, "read")


def test_the_table_names_the_best_peer_and_what_is_missing() -> None:
    about = {"version": "1", "settings": "s", "load_s": 1.0}
    work = "decode 1 at 5"
    result = {
        "model": "m", "cpu": "c", "threads": 2, "commit": "abc", "command": "python",
        "works": {work: {"limit_tokens_per_s": 40.0, "limited_by": "read"}},
        "engines": {
            "redoubt": {**about, "results": {work: {"median": 20.0}}},
            "redoubt_bf16": {**about, "results": {work: {"median": 15.0}}},
            "a": {**about, "results": {work: {"median": 5.0}}},
            "b": {**about, "results": {work: {"none": "crashed"}}},
        },
        "ratios": {"a": {work: {"of_medians": 4.0, "lowest": 3.9, "highest": 4.1}}, "b": {}},
        "limits": {"read_bytes_per_s": 3e10, "macs_per_s": 4e11, "instruction": "vnni"},
        "missing": {"d": "no wheel"}, "crashes": [{"engine": "b", "work": work, "variant": "", "reason": "boom"}],
    }  # fmt: skip
    text = table(json.loads(json.dumps(result)))
    assert f"| {work} | 40 (read) | 20.0 | 50% | 15.0 | 5.0 | crashed | 4.0 (3.9 to 4.1) |" in text
    assert "d is missing: no wheel" in text
    assert "b crashed at decode 1 at 5: boom" in text
