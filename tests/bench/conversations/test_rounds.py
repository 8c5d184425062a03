"""Rounds on servers that answer at once: which conversations each gets, and what becomes of the figures."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

import pytest

from bench.conversations.client import CUT, Receipt
from bench.conversations.command import search_all
from bench.conversations.figures import Slo, pooled
from bench.conversations.fleet import Fleet
from bench.conversations.load import Load, body
from bench.conversations.plan import PlannedConversation, Selection, TurnRequest
from bench.conversations.rounds import WARM_UP, Plan, medians, play, rates_of_searches, ratios, run_once, warm_up
from bench.conversations.search import LEAST_PROBE, Search
from bench.conversations.table import table


class Server:
    def __init__(self, name: str) -> None:
        self.name, self.url = name, f"http://{name}"
        self.models: tuple[str, ...] = (name,)

    def about(self) -> dict[str, Any]:
        return {"version": "1", "settings": "none"}


class Servers:
    """In the place of a fleet: "lame" does not start."""

    def order(self, number: int) -> list[str]:
        return [name for name in ("redoubt", "slow", "lame") if name not in self.missing]

    @contextmanager
    def turn(self, name: str) -> Iterator[Server | None]:
        yield None if name == "lame" else Server(name)

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    @contextmanager
    def share_of_others(self, name: str) -> Iterator[Callable[[], float]]:
        yield lambda: 0.25

    def fails(self, name: str, reason: str) -> None:
        self.missing[name] = reason


SELECTION = Selection(
    tuple(PlannedConversation(str(number), (TurnRequest((("user", "a"),), (), 5, 3),)) for number in range(60)), 0, 0
)
PLAN = Plan(
    selection=SELECTION,
    conversations=4,
    rounds=2,
    at_once=2,
    rate=None,
    promise=Slo(),
    run_s=60,
    probe_s=10,
    search_s=600,
    seed=1,
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], float | None]]:
    """What each server was sent; "redoubt" needs a second for an answer, others two, and at a rate above 3, ten."""
    found: list[tuple[str, list[str], float | None]] = []

    def send(self: Load, url: str, models: tuple[str, ...], selection: Selection) -> list[Receipt]:
        (model,) = models
        found.append((model, [one.id for one in selection.conversations], self.rate))
        first_s = 10.0 if (self.rate or 0) > 3 else 1.0 if model == "redoubt" else 2.0
        apart_s = first_s + 0.2 if self.at_once == 1 else 0.0
        begins_s = [apart_s * number for number in range(len(selection.conversations))]
        return [
            Receipt(number, 0, begin_s, begin_s, begin_s + first_s + 0.2,
                    [begin_s + first_s, begin_s + first_s + 0.2], 5, 0, 3)
            for number, begin_s in enumerate(begins_s)
        ]  # fmt: skip

    monkeypatch.setattr(Load, "send", send)
    return found


def test_servers_of_a_round_get_the_same_and_each_round_others(
    sent: list[tuple[str, list[str], float | None]],
) -> None:
    done: list[dict[str, list[dict[str, Any]]]] = []
    play(
        cast("Fleet", Servers()), PLAN, lambda rounds: done.append({name: list(some) for name, some in rounds.items()})
    )
    assert [name for name, _, _ in sent] == ["redoubt", "slow", "redoubt", "slow"]
    assert sent[0][1] == sent[1][1] == [str(WARM_UP + number) for number in range(4)]
    assert sent[2][1] == sent[3][1] == [str(WARM_UP + 4 + number) for number in range(4)]
    assert [sorted(rounds) for rounds in done] == [["redoubt", "slow"]] * 2
    found = ratios(done[-1])["slow"]
    assert found["requests_per_s"] == {"median": 1.83, "lowest": 1.83, "highest": 1.83}
    assert found["first_token_p99"]["median"] == 2.0
    assert pooled(done[-1]["redoubt"])["first_token_p50_s"] == 1.0
    assert done[-1]["slow"][0]["cores_of_other_servers"] == 0.25


def test_an_answer_without_text_ends_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Load, url: str, models: tuple[str, ...], selection: Selection) -> list[Receipt]:
        many = range(len(selection.conversations))
        return [Receipt(n, 0, 0, 0, 1, [] if n < silent else [0.5], 5, 0, 3, errors[n]) for n in many]

    monkeypatch.setattr(Load, "send", send)
    silent, errors = 1, [""] * WARM_UP
    warm_up(PLAN)(Server("a"))
    silent = WARM_UP
    with pytest.raises(RuntimeError, match="'no text': 4"):
        warm_up(PLAN)(Server("a"))
    silent, errors = 0, ["", "status 500", "", ""]
    with pytest.raises(RuntimeError, match="'status 500': 1"):
        warm_up(PLAN)(Server("a"))


def test_every_server_of_a_round_has_the_same_arrivals_and_each_round_others(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals: list[tuple[str, list[float]]] = []

    def send(self: Load, url: str, models: tuple[str, ...], selection: Selection) -> list[Receipt]:
        (model,) = models
        arrivals.append((model, list(self._arrivals_s(20) or ())))
        return []

    monkeypatch.setattr(Load, "send", send)
    play(cast("Fleet", Servers()), replace(PLAN, rate=2.0), lambda rounds: None)
    assert arrivals[0][1] == arrivals[1][1] != arrivals[2][1] == arrivals[3][1]


def test_a_server_that_fails_takes_no_further_part(
    sent: list[tuple[str, list[str], float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Load.send

    def send(self: Load, url: str, models: tuple[str, ...], selection: Selection) -> list[Receipt]:
        (model,) = models
        if model == "slow" and len(sent) > 2:
            raise RuntimeError("the client did not end within 90 s")
        return good(self, url, models, selection)

    monkeypatch.setattr(Load, "send", send)
    fleet = Servers()
    rounds: dict[str, list[dict[str, Any]]] = {}
    play(cast("Fleet", fleet), replace(PLAN, rounds=4), rounds.update)
    assert {name: len(some) for name, some in rounds.items()} == {"redoubt": 4, "slow": 1}
    assert fleet.missing == {"slow": "round 2: the client did not end within 90 s"}


def test_a_search_finds_the_rate_and_uses_other_conversations_each_time(
    sent: list[tuple[str, list[str], float | None]],
) -> None:
    found = Search(Server("redoubt"), PLAN).run()
    assert found["conversations_per_s"] <= 3 < found["broken_at"] <= found["conversations_per_s"] * 1.1 + 1e-3
    assert [rate for _, _, rate in sent[:2]] == [None, None]  # alone, and the closed loop, which says where to begin
    assert sent[1][1][0] == str(WARM_UP + LEAST_PROBE)
    assert sent[2][1][0] == str(WARM_UP + LEAST_PROBE + 4)
    assert sent[3][1] != sent[2][1]
    assert len(sent[2][1]) >= LEAST_PROBE
    assert found["conversations_used"] == sum(len(ids) for _, ids, _ in sent)
    assert found["conversations_repeated"] == found["conversations_used"] + WARM_UP - 60
    assert (found["not_reached"], found["one_at_a_time"]["requests"]) == ("", LEAST_PROBE)
    assert json.dumps(found)
    assert "samples" not in json.dumps(found)


def test_searches_take_turns_and_begin_where_the_last_one_ended(
    sent: list[tuple[str, list[str], float | None]],
) -> None:
    fleet = Servers()
    *_, searches = search_all(cast("Fleet", fleet), replace(PLAN, rounds=3))
    turns = [name for name, _ in groupby(name for name, _, _ in sent)]
    assert turns == ["redoubt", "slow", "redoubt", "slow", "redoubt", "slow"]
    first, *further = searches["redoubt"]
    assert "one_at_a_time" in first
    for one in further:
        assert "one_at_a_time" not in one
        assert [probe["kept"] for probe in one["probes"]] == [True, False]
        assert one["probes"][0]["rate"] == first["conversations_per_s"]
        assert one["cores_of_other_servers"] == 0.25
    found = rates_of_searches(searches)
    assert found["redoubt"]["conversations_per_s"]["median"] == pytest.approx(first["conversations_per_s"], abs=1e-3)
    assert "ours_over_its" not in found["redoubt"]
    assert found["slow"]["ours_over_its"]["median"] == pytest.approx(1.0, abs=0.1)
    none = {**searches["slow"][0], "conversations_per_s": 0.0}
    found = rates_of_searches({**searches, "slow": [none, *searches["slow"][1:]]})
    assert found["slow"]["compared"] == 2
    assert found["slow"]["ours_over_its"]["median"] == pytest.approx(1.0, abs=0.1)
    for some in ([none], [none, searches["slow"][1]]):
        assert rates_of_searches({**searches, "slow": some})["slow"]["ours_over_its"] is None


def test_a_search_that_fails_ends_that_server_s_part(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [Receipt(0, 0, 0.0, 0.0, 600.0, [], 0, 0, 0, "status 500")]
    monkeypatch.setattr(Load, "send", lambda *_: failed)
    fleet = Servers()
    assert list(search_all(cast("Fleet", fleet), PLAN)) == []
    assert fleet.missing["slow"] == "search 1: no request succeeds: {'status 500': 1}"


def test_a_search_ends_at_once_where_one_client_alone_waits_too_long(
    sent: list[tuple[str, list[str], float | None]],
) -> None:
    found = Search(Server("slow"), replace(PLAN, promise=Slo(first_token_s=1.5))).run()
    assert len(sent) == 1
    assert found["conversations_per_s"] == 0
    assert found["not_reached"] == "one client alone breaks the promise already"


def test_a_search_fails_where_no_request_succeeds_but_not_where_all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: str) -> None:
        failed = [Receipt(0, 0, 0.0, 0.0, 600.0, [], 0, 0, 0, error)]
        monkeypatch.setattr(Load, "send", lambda *_: failed)

    failing("status 500")
    with pytest.raises(RuntimeError, match=r"no request succeeds: .*status 500"):
        Search(Server("redoubt"), PLAN).run()
    failing(CUT)
    assert Search(Server("redoubt"), PLAN).run()["conversations_per_s"] == 0


def test_a_search_has_an_end(sent: list[tuple[str, list[str], float | None]]) -> None:
    clock = iter([0.0, *(100.0 * step for step in range(100))])
    found = Search(Server("redoubt"), PLAN, lambda: next(clock)).run()
    assert len(sent) == 6  # of which each took 100 s
    assert found["not_reached"].startswith("no time was left for a probe at")


def test_conversations_that_had_no_time_to_begin_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Load, url: str, models: tuple[str, ...], selection: Selection) -> list[Receipt]:
        assert self.begin_within_s is not None
        return [Receipt(number, 0, 0.0, 0.0, 9.2, [9.0, 9.2], 5, 0, 3) for number in range(3)]

    monkeypatch.setattr(Load, "send", send)
    found = Search(Server("redoubt"), PLAN).run()
    assert (found["one_at_a_time"]["requests"], found["one_at_a_time"]["not_sent"]) == (3, 0)
    assert found["conversations_used"] == 3


def test_a_round_without_answers_has_no_medians_and_no_ratios() -> None:
    empty: dict[str, Any] = {"requests_per_s": 0.0, "tokens_per_s": 0.0, "first_token_s": {}, "token_s": {}}
    assert medians([empty]) == {"requests_per_s": 0.0, "tokens_per_s": 0.0}
    assert medians([{}])["requests_per_s"] is None
    assert ratios({"redoubt": [empty], "slow": [empty]})["slow"] == dict.fromkeys(
        ("requests_per_s", "tokens_per_s", "first_token_p99", "token_p50")
    )


def test_a_request_is_cut_by_its_run_alone_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[dict[str, Any]] = []

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        jobs.append(json.loads(given["input"]))
        return subprocess.CompletedProcess(command, 0, "[]", "")

    monkeypatch.setattr(subprocess, "run", run)
    Load(at_once=2, seed=1, run_s=1800.0).send("http://a", ["m"], SELECTION)
    Load(at_once=2, seed=1, run_s=1800.0, request_s=20.0, begin_within_s=9.0).send("http://a", ["m"], SELECTION)
    assert [(job["timeout_s"], job["end_by_s"], job["begin_within_s"]) for job in jobs] == [
        (1800.0, 1800.0, None),
        (20.0, 1800.0, 9.0),
    ]


def test_conversations_go_to_the_models_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[dict[str, Any]] = []

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        jobs.append(json.loads(given["input"]))
        return subprocess.CompletedProcess(command, 0, "[]", "")

    monkeypatch.setattr(subprocess, "run", run)
    Load(at_once=2, seed=1, run_s=1800.0).send("http://a", ["m", "n"], SELECTION)
    asked = [one[0]["body"]["model"] for one in jobs[0]["conversations"]]
    assert asked == [("m", "n")[number % 2] for number in range(len(asked))]
    assert len(asked) > 1


def test_requests_are_as_long_as_ordered() -> None:
    chat = body("m", SELECTION.conversations[0].requests[0])
    assert chat["path"] == "/v1/chat/completions"
    assert chat["body"]["messages"] == [{"role": "user", "content": "a"}]
    assert (chat["body"]["max_tokens"], chat["body"]["ignore_eos"], chat["body"]["stream"]) == (3, True, True)
    ids = body("m", TurnRequest((), (600, 601), 2, 3))
    assert (ids["path"], ids["body"]["prompt"]) == ("/v1/completions", (600, 601))


def test_the_table(sent: list[tuple[str, list[str], float | None]]) -> None:
    rounds = {name: [run_once(Server(name), PLAN, 0)] for name in ("redoubt", "slow")}
    result = {
        **{"model": "small", "cpu": "a CPU", "threads": 2, "commit": "abc", "command": "redoubt bench conversations"},
        "load": {"conversations": 4, "rounds": 1, "rate": None, "at_once": 2},
        "data": SELECTION.about(),
        "promise": {"first_token_s": 3.0, "token_s": 0.2, "share": 0.95},
        "servers": {name: Server(name).about() for name in rounds},
        "missing": {"lame": "does not start\nat all"},
        "rounds": rounds,
        "medians": {name: medians(some) for name, some in rounds.items()},
        "all_rounds": {name: pooled(some) for name, some in rounds.items()},
        "ratios": ratios(rounds),
        "notes": ["a round is short"],
    }
    text = table(result)
    ours = "| redoubt | 3.33 (3.33 to 3.33) | 10.0 (10.0 to 10.0) | 1.00, 1.00, 1.00 | 100, 100, 100 | 200 | 0 |"
    assert f"{ours} 1 of 1 rounds |  |" in text
    assert "| slow | 1.82 (1.82 to 1.82) |" in text
    assert "| 1.83 (1.83 to 1.83) |" in text
    beside = {"rounds": {"llama_cpp": rounds["slow"]}, "all_rounds": {"llama_cpp": pooled(rounds["slow"])}}
    text = table(result | beside | {"ratios": {"llama_cpp": ratios(rounds)["slow"]}})
    assert "| **1.83 (1.83 to 1.83), aim 4** |" in text
    text = table(result)
    assert "- lame is missing: does not start" in text.splitlines()
    assert "- Note: a round is short." in text.splitlines()
    found = Search(Server("redoubt"), PLAN).run()
    text = table(result | {"rounds": {}, "found_rates": rates_of_searches({"redoubt": [found, found]})})
    rate = f"{found['conversations_per_s']:.2f}"
    assert f"| redoubt | {rate} ({rate} to {rate}) |  |" in text
    assert "conversations were sent again" in text
    alone = Search(Server("slow"), replace(PLAN, promise=Slo(first_token_s=1.5))).run()
    text = table(result | {"rounds": {}, "found_rates": rates_of_searches({"slow": [alone]})})
    assert "| slow | 0.00 (0.00 to 0.00) |  | 0.45 | - | 0.00 (-) |" in text
    assert "- slow, search 1: one client alone breaks the promise already." in text
    remote = {name: value for name, value in result.items() if name not in ("cpu", "threads", "commit")}
    text = table(remote | {"client_cpu": "a laptop"})
    assert "The client ran on a laptop; the service's machine is not known here." in text
