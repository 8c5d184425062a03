"""Rounds on servers that answer at once: which conversations each gets, and what becomes of the figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from bench.conversations.client import Receipt
from bench.conversations.figures import Promise
from bench.conversations.fleet import Fleet
from bench.conversations.load import Load, body
from bench.conversations.plan import PlannedConversation, Selection, TurnRequest
from bench.conversations.rounds import WARM_UP, Plan, medians, play, ratios, run_once, search
from bench.conversations.table import table


class Server:
    def __init__(self, name: str) -> None:
        self.name, self.url, self.model = name, f"http://{name}", name

    def about(self) -> dict[str, Any]:
        return {"version": "1", "settings": "none"}


class Servers:
    """In the place of a fleet: "lame" does not start."""

    def order(self, number: int) -> list[str]:
        return ["redoubt", "slow", "lame"]

    @contextmanager
    def turn(self, name: str) -> Iterator[Server | None]:
        yield None if name == "lame" else Server(name)

    def others_cpu_s(self, name: str) -> float:
        return 0.0


SELECTION = Selection(
    tuple(PlannedConversation(str(number), (TurnRequest((("user", "a"),), (), 5, 3),)) for number in range(60)), 0, 0
)
PLAN = Plan(
    selection=SELECTION,
    conversations=4,
    rounds=2,
    at_once=2,
    rate=None,
    promise=Promise(),
    run_s=60,
    probe_s=10,
    seed=1,
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], float | None]]:
    """What each server was sent; "redoubt" needs a second for an answer, others two, and at a rate above 3, ten."""
    found: list[tuple[str, list[str], float | None]] = []

    def send(self: Load, url: str, model: str, selection: Selection) -> list[Receipt]:
        found.append((model, [one.id for one in selection.conversations], self.rate))
        first_s = 10.0 if (self.rate or 0) > 3 else 1.0 if model == "redoubt" else 2.0
        return [
            Receipt(number, 0, 0.0, 0.0, first_s + 0.2, [first_s, first_s + 0.2], 5, 0, 3)
            for number in range(len(selection.conversations))
        ]

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
    assert medians(done[-1]["redoubt"])["first_token_p50_s"] == 1.0


def test_a_search_finds_the_rate_and_uses_other_conversations_each_time(
    sent: list[tuple[str, list[str], float | None]],
) -> None:
    found = search(Server("redoubt"), PLAN)
    assert found["conversations_per_s"] <= 3 < found["broken_at"] <= found["conversations_per_s"] * 1.1 + 1e-3
    assert sent[0][2] is None  # the closed loop, which says where to begin
    assert sent[1][1][0] == str(WARM_UP + 4)
    assert sent[2][1] != sent[1][1]
    assert len(sent[1][1]) >= 20


def test_a_round_without_answers_has_no_medians_and_no_ratios() -> None:
    empty: dict[str, Any] = {"requests_per_s": 0.0, "tokens_per_s": 0.0, "first_token_s": {}, "token_s": {}}
    assert medians([empty])["first_token_p99_s"] is None
    assert ratios({"redoubt": [empty], "slow": [empty]})["slow"] == dict.fromkeys(
        ("requests_per_s", "tokens_per_s", "first_token_p99", "token_p50")
    )


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
        "ratios": ratios(rounds),
    }
    text = table(result)
    assert "| redoubt | 3.33 | 10.0 | 1.00, 1.00, 1.00 | 100, 100, 100 | 200 | 0 | 1 of 1 rounds |  |" in text
    assert "| slow | 1.82 |" in text
    assert "1.83 (1.83 to 1.83)" in text
    assert "- lame is missing: does not start" in text.splitlines()
    found = search(Server("redoubt"), PLAN)
    text = table(result | {"rounds": {}, "found_rates": {"redoubt": found}})
    assert f"| redoubt | {found['conversations_per_s']:.2f} |" in text
