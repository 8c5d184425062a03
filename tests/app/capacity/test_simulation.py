"""The simulation of a worker under load: what it must agree with, and in which direction it moves."""

from dataclasses import replace

import pytest

from app.capacity.demand import CapacityError
from app.capacity.plan import step_times
from app.capacity.simulation import SERVICE_LATENCY_S, SERVICE_SHARE, Simulation, simulate
from app.capacity.step_time import decode_step, prompt_steps
from app.capacity.traffic import Arrival, Promise, Traffic, arrivals
from tests.app.capacity.shapes import demand, machine

TRAFFIC = Traffic(context_tokens=512)


def run(requests: list[Arrival], *, kv_tokens: int = 100_000, most_running: int = 8, traffic: Traffic = TRAFFIC):  # type: ignore[no-untyped-def]
    times = step_times(demand(), machine())
    simulation = Simulation(times, traffic, kv_tokens=kv_tokens, most_running=most_running, users=10)
    return simulation, simulation.run(requests, Promise())


def test_one_request_alone_takes_the_time_of_its_steps() -> None:
    simulation, outcome = run([Arrival(1.0, 3, 40, 65)])
    times = step_times(demand(), machine())
    prompt_s = sum(times.expected(step).seconds for step in prompt_steps(40, 512))
    first_s, token_s = simulation._done[0]
    assert first_s == pytest.approx(prompt_s / SERVICE_SHARE + SERVICE_LATENCY_S)
    assert token_s == pytest.approx(times.expected(decode_step(1, 552)).seconds / SERVICE_SHARE, rel=0.02)
    assert outcome.kept
    assert outcome.running_most == 1
    assert outcome.history_share == 1.0


def test_a_history_that_is_not_in_the_cache_is_computed_again() -> None:
    (kept, _), (lost, outcome) = run([Arrival(0.0, 3, 40, 5)]), run([Arrival(0.0, 3, 40, 5)], kv_tokens=600)
    assert outcome.history_share == 0.0
    assert lost._done[0][0] > 5 * kept._done[0][0]


def test_no_more_run_than_places_and_pages_allow() -> None:
    burst = [Arrival(0.0, user, 40, 50) for user in range(30)]
    assert run(burst, most_running=4)[1].running_most == 4
    assert run(burst, kv_tokens=3 * 602, most_running=30)[1].running_most == 3


def test_everything_is_given_back_at_the_end() -> None:
    simulation, _ = run([Arrival(n / 10, n % 7, 30 + n, 1 + n % 90) for n in range(60)], kv_tokens=5000)
    assert len(simulation._done) == 60
    assert simulation._held_tokens == 0
    assert simulation._cached_tokens == sum(simulation._cached.values()) <= 5000


def test_counting_equal_steps_at_once_changes_no_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    times, traffic = step_times(demand(), machine()), Traffic()
    options = {"kv_tokens": 200_000, "most_running": 32, "users": 20, "requests": 300}
    coarse = simulate(times, traffic, Promise(), **options)
    monkeypatch.setattr("app.capacity.simulation._MOST_STEPS_AT_ONCE", 1)
    fine = simulate(times, traffic, Promise(), **options)
    assert coarse.first_token_share == pytest.approx(fine.first_token_share, abs=0.02)
    assert coarse.busy_share == pytest.approx(fine.busy_share, rel=0.03)


def test_the_same_arguments_give_the_same_outcome_and_more_users_a_busier_worker() -> None:
    times = step_times(demand(), machine())

    def outcome(users: int):  # type: ignore[no-untyped-def]
        traffic = Traffic(prompt_tokens=10)
        return simulate(times, traffic, Promise(), kv_tokens=300_000, most_running=32, users=users, requests=300)

    assert outcome(5) == outcome(5)
    busy = [outcome(users).busy_share for users in (2, 8, 30)]
    assert busy == sorted(busy)
    assert outcome(2).kept
    assert not outcome(3000).kept


def test_arrivals_have_the_rate_and_the_medians_of_the_traffic() -> None:
    drawn = arrivals(Traffic(prompt_tokens=72, answer_tokens=132, seconds_between=10), 50, 4000, seed=3)
    assert 4000 / drawn[-1].at_s == pytest.approx(5, rel=0.05)
    prompts, answers = (sorted(getattr(each, name) for each in drawn) for name in ("prompt_tokens", "answer_tokens"))
    assert prompts[2000] == pytest.approx(72, rel=0.1)
    assert answers[2000] == pytest.approx(132, rel=0.1)
    assert [each.at_s for each in drawn] == sorted(each.at_s for each in drawn)


@pytest.mark.parametrize("changes", [
    {"prompt_tokens": 0}, {"answer_tokens": -1}, {"context_tokens": -1}, {"seconds_between": 0.0},
    {"seconds_between": float("nan")}, {"seconds_between": float("inf")},
])  # fmt: skip
def test_nonsense_traffic_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(CapacityError, match=r"must be (at least|above)"):
        replace(Traffic(), **changes)  # type: ignore[arg-type]
