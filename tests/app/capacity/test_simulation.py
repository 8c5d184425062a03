"""The simulation of a worker under load: what it must agree with, and in which direction it moves."""

from dataclasses import replace
from typing import Any

import pytest

from app.capacity import simulation
from app.capacity.demand import CapacityError
from app.capacity.simulation import SERVICE_LATENCY_S, SERVICE_SHARE, Simulation, simulate
from app.capacity.step_time import decode_step, prompt_steps
from app.capacity.traffic import Arrival, Slo, Traffic, arrivals
from app.capacity.users import step_times
from app.engine.scheduling import pace
from app.settings.worker import EngineSettings
from tests.app.capacity.shapes import demand, machine

TRAFFIC = Traffic(context_tokens=512)


def run(requests: list[Arrival], *, kv_tokens: int = 100_000, most_running: int = 8, traffic: Traffic = TRAFFIC):  # type: ignore[no-untyped-def]
    times = step_times(demand(), machine())
    simulation = Simulation(times, traffic, kv_tokens=kv_tokens, most_running=most_running, users=10)
    return simulation, simulation.run(requests, Slo())


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
    options: dict[str, Any] = {
        "kv_tokens": 200_000,
        "most_running": 32,
        "users": 20,
        "requests": 300,
        "context_tokens": 9000,
        "seed": 1,
    }
    coarse = simulate(times, traffic, Slo(), **options)
    monkeypatch.setattr("app.capacity.simulation._MOST_STEPS_AT_ONCE", 1)
    fine = simulate(times, traffic, Slo(), **options)
    assert coarse.kept_share == pytest.approx(fine.kept_share, abs=0.02)
    assert coarse.busy_share == pytest.approx(fine.busy_share, rel=0.03)


def test_the_same_arguments_give_the_same_outcome_and_more_users_a_busier_worker() -> None:
    times = step_times(demand(), machine())

    def outcome(users: int):  # type: ignore[no-untyped-def]
        traffic = Traffic(prompt_tokens=10)
        options: dict[str, Any] = {"kv_tokens": 300_000, "most_running": 32, "context_tokens": 9000, "requests": 300}
        return simulate(times, traffic, Slo(), users=users, **options)

    assert outcome(5) == outcome(5)
    busy = [outcome(users).busy_share for users in (2, 8, 30)]
    assert busy == sorted(busy)
    assert outcome(2).kept
    assert not outcome(3000).kept


def test_arrivals_have_the_rate_and_the_medians_of_the_traffic() -> None:
    drawn = arrivals(Traffic(prompt_tokens=72, answer_tokens=132, seconds_between=10), 50, 4000, 3, 90_000)
    assert 4000 / drawn[-1].at_s == pytest.approx(5, rel=0.05)
    prompts, answers = (sorted(getattr(each, name) for each in drawn) for name in ("prompt_tokens", "answer_tokens"))
    assert prompts[2000] == pytest.approx(72, rel=0.1)
    assert answers[2000] == pytest.approx(132, rel=0.1)
    assert [each.at_s for each in drawn] == sorted(each.at_s for each in drawn)


def test_a_request_must_keep_both_parts_of_the_promise() -> None:
    late = [Arrival(10.0 * n, n, 400 if n % 2 else 20, 1 if n % 2 else 40) for n in range(200)]
    times = step_times(demand(), machine())
    first_s = sum(times.expected(step).seconds for step in prompt_steps(400, 512))
    token_s = times.expected(decode_step(1, 512)).seconds
    # Those with the long prompt break one part, those with the answer the other: no request keeps both.
    slo = Slo(first_token_s=0.9 * first_s, token_s=0.9 * token_s, share=0.3)
    simulation = Simulation(times, TRAFFIC, kv_tokens=200_000, most_running=8, users=200)
    outcome = simulation.run(late, slo)
    assert outcome.kept_share == 0.0
    assert not outcome.kept
    for easier in (replace(slo, first_token_s=99.0), replace(slo, token_s=99.0)):
        again = Simulation(times, TRAFFIC, kv_tokens=200_000, most_running=8, users=200)
        assert again.run(late, easier).kept_share == pytest.approx(0.5, abs=0.01)


def test_near_the_promise_s_share_three_seeds_decide() -> None:
    times, traffic = step_times(demand(), machine()), Traffic(prompt_tokens=10)
    options: dict[str, Any] = {
        "kv_tokens": 300_000,
        "most_running": 32,
        "users": 12,
        "context_tokens": 9000,
        "requests": 300,
    }
    shares = sorted(simulate(times, traffic, Slo(), seed=seed, **options).kept_share for seed in (1, 2, 3))
    near = Slo(share=simulate(times, traffic, Slo(), seed=1, **options).kept_share)
    assert simulate(times, traffic, near, **options).kept_share == shares[1]
    far = Slo(share=near.share - 0.1)
    assert simulate(times, traffic, far, **options).kept_share == near.share


def test_longer_requests_than_the_context_are_cut_to_it() -> None:
    traffic = Traffic(context_tokens=100)
    drawn = arrivals(traffic, 5, 2000, 1, 500)
    assert max(100 + each.prompt_tokens + each.answer_tokens for each in drawn) == 500
    assert min(each.answer_tokens for each in drawn) >= 1
    assert min(each.prompt_tokens for each in drawn) >= 1


@pytest.mark.parametrize(("kv_tokens", "context_tokens"), [(1000, 9000), (90_000, 1000)])
def test_where_the_median_request_does_not_fit_nothing_runs(kv_tokens: int, context_tokens: int) -> None:
    times = step_times(demand(), machine())
    outcome = simulate(
        times, Traffic(), Slo(), kv_tokens=kv_tokens, most_running=4, users=1, context_tokens=context_tokens
    )
    assert (outcome.kept, outcome.running_most) == (False, 0)


def test_an_overload_is_the_worse_the_fewer_are_served_in_time() -> None:
    times = step_times(demand(), machine())
    options: dict[str, Any] = {"kv_tokens": 300_000, "most_running": 32, "context_tokens": 9000}
    shares = [simulate(times, Traffic(), Slo(), users=users, **options).kept_share for users in (22, 24, 26, 30)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[1] > shares[2] > 0


@pytest.mark.parametrize("changes", [
    {"prompt_tokens": 0}, {"answer_tokens": -1}, {"context_tokens": -1}, {"seconds_between": 0.0},
    {"seconds_between": float("nan")}, {"seconds_between": float("inf")},
])  # fmt: skip
def test_nonsense_traffic_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(CapacityError, match=r"must be (at least|above)"):
        replace(Traffic(), **changes)  # type: ignore[arg-type]


def test_it_paces_prompts_as_the_scheduler_does() -> None:
    settings = EngineSettings()
    assert settings.prompt_chunk_tokens == simulation.PROMPT_CHUNK_TOKENS
    assert settings.prompt_pause_s == simulation.PROMPT_PAUSE_S
    for name in ("_PAUSES_ALONE", "_LEAST_CHUNK", "_LEAST_ALONE", "_LEAST_EXPERT_ROWS"):
        assert getattr(simulation, name) == getattr(pace, name)
