"""Loads on services that answer at once, by clocks of our own."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from bench import loads
from bench.conversations.client import Receipt
from bench.conversations.fleet import Fleet
from bench.conversations.load import Load
from bench.conversations.plan import Selection
from bench.loads import LOADS, Sender, Setting, parse


class Server:
    def __init__(self, name: str) -> None:
        self.name, self.url = name, f"http://{name}"
        self.models: tuple[str, ...] = (name,)
        self.ended = 0

    def about(self) -> dict[str, Any]:
        return {}

    def end(self) -> None:
        self.ended += 1


class Servers:
    """In the place of a fleet."""

    def __init__(self, *names: str) -> None:
        self.servers = {name: Server(name) for name in names}
        self.turns: list[str] = []

    def order(self, number: int) -> list[str]:
        names = list(self.servers)
        return names[number % len(names) :] + names[: number % len(names)]

    @contextmanager
    def turn(self, name: str) -> Iterator[Server]:
        self.turns.append(name)
        yield self.servers[name]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None, Selection]]:
    """What each service was sent. The n-th of those who ask at once has its first token after n seconds; n doubles for
    every service but ours, and each further token takes a tenth."""
    found: list[tuple[str, int | None, Selection]] = []

    def send(self: Load, url: str, models: Sequence[str], selection: Selection) -> list[Receipt]:
        (model,) = models
        found.append((model, self.at_once, selection))
        factor = 1.0 if model == "redoubt" else 2.0
        receipts = []
        for number, one in enumerate(selection.conversations):
            (request,) = one.requests
            due_s = 100.0 * number if self.at_once == 1 else 0.0
            first_s = due_s + factor * (1 if self.at_once == 1 else number + 1)
            times = [first_s + 0.1 * factor * token for token in range(request.answer_tokens)]
            receipts.append(Receipt(number, 0, due_s, due_s, times[-1], times, 5, 0, request.answer_tokens))
        return receipts

    monkeypatch.setattr(Load, "send", send)
    return found


def setting(what: str, *, rounds: int = 3, users: tuple[int, ...] = (1, 4)) -> Setting:
    here = Path()
    return Setting(
        what=what, model="embedded", threads=2, rounds=rounds, prompts=LOADS[what].prompts, users=users, models=here,
        environments=here, folder=here,
    )  # fmt: skip


def measured(what: str, fleet: Servers, **more: Any) -> list[dict[str, Any]]:
    rows = LOADS[what].measure(cast("Fleet", fleet), Sender(1000), setting(what, **more))
    assert json.dumps(rows)
    return rows


def test_no_prompt_is_sent_twice(sent: list[tuple[str, int | None, Selection]]) -> None:
    measured("first-token", Servers("redoubt"))
    prompts = [one.requests[0].token_ids for _, _, selection in sent for one in selection.conversations]
    assert len(prompts) == len(set(prompts)) == 3 * len(LOADS["first-token"].prompts) * 5


def test_first_tokens_by_length_and_users(sent: list[tuple[str, int | None, Selection]]) -> None:
    rows = measured("first-token", Servers("redoubt"))
    assert [(row["prompt_tokens"], row["users"]) for row in rows[:3]] == [(32, 1), (32, 4), (128, 1)]
    assert rows[1]["first_token_s"] == {"median": 2.5, "lowest": 2.5, "highest": 2.5}
    assert rows[1]["slowest_first_token_s"]["median"] == 4.0
    # rounds are interleaved: every cell once, then every cell again
    assert [at_once for _, at_once, _ in sent[:4]] == [1, 4, 1, 4]


def test_of_a_crowd_the_queue_is_told(
    sent: list[tuple[str, int | None, Selection]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = {"admitted": 0, "queued_s": 0.0}

    def workers(url: str, path: str) -> dict[str, Any]:
        waited["admitted"] += 2
        waited["queued_s"] += 3.0
        return {"data": [dict(waited)]}

    monkeypatch.setattr(loads, "get_json", workers)
    monkeypatch.setattr("time.sleep", lambda _: None)
    fleet = Servers("redoubt", "redoubt_2_workers")
    rows = measured("concurrency", fleet, users=(4, 1000))
    ours, theirs = "redoubt", "redoubt_2_workers"
    assert fleet.turns == [ours, theirs, theirs, ours, ours, theirs]
    by_name = {(row["server"], row["users"]): row for row in rows}
    assert by_name[ours, 1000]["computed_at_once"] == 64
    assert by_name[theirs, 1000]["computed_at_once"] == 128
    assert by_name[ours, 4]["computed_at_once"] == 4
    assert by_name[ours, 4]["queue_mean_s"]["median"] == 1.5
    assert by_name[ours, 4]["requests_per_s"]["median"] == round(4 / 5.5, 4)
    assert by_name[ours, 4]["first_token_mean_s"]["median"] == 2.5


def test_each_start_is_asked_ten_times(sent: list[tuple[str, int | None, Selection]]) -> None:
    fleet = Servers("redoubt")
    *rows, last = measured("start", fleet)
    assert fleet.servers["redoubt"].ended == 3
    assert [row["request"] for row in rows] == list(range(1, 11))
    assert rows[0]["first_token_s"]["median"] == 1.0
    assert last["first_token_s"] == {"median": 1.0, "lowest": 1.0, "highest": 1.0}
    texts = {one.requests[0].messages for _, _, selection in sent for one in selection.conversations}
    assert len(texts) == 30


def test_lengths_are_beside_llama_cpp_in_turn(sent: list[tuple[str, int | None, Selection]]) -> None:
    fleet = Servers("redoubt", "llama_cpp")
    rows = measured("lengths", fleet, users=(1,))
    assert fleet.turns == ["redoubt", "llama_cpp", "llama_cpp", "redoubt", "redoubt", "llama_cpp"]
    assert [(row["prompt_tokens"], row["new_tokens"]) for row in rows] == [(32, 32), (1024, 32)]
    assert rows[0]["redoubt"]["next_token_s"]["median"] == 0.1
    assert rows[0]["its_over_ours"]["response_s"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert "its_over_ours" not in measured("lengths", Servers("redoubt"), users=(1,))[0]


def test_a_request_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [Receipt(0, 0, 0.0, 0.0, 1.0, [], 0, 0, 0, "status 429")]
    monkeypatch.setattr(Load, "send", lambda *_: failed)
    with pytest.raises(RuntimeError, match="requests fail: status 429"):
        measured("first-token", Servers("redoubt"))


@pytest.mark.parametrize("arguments", [["start", "--model", "embedded", "--prompts", "8"], ["nothing"], ["start"]])
def test_wrong_options_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert capsys.readouterr().err.count("\n") == 1


def test_every_load_has_a_sentence() -> None:
    assert all(f"- {name}: " in (loads.__doc__ or "") for name in LOADS)
