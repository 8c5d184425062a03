"""The simulation keeps its own laws, and the router's code behaves in it as it should."""

from dataclasses import replace
from typing import Any

import pytest

from bench.scale.fleet import Job, SimulatedWorker
from bench.scale.routers import POLICIES
from bench.scale.simulation import Scenario, Simulation
from bench.scale.workload import Lengths, requests_per_s, step_times_s

LENGTHS = Lengths.built_in()
SMALL = Scenario(policy="SHORTEST_QUEUE", workers=6, routers=3, warm_up_s=20.0, measured_s=40.0)


def run(scenario: Scenario) -> dict[str, Any]:
    return Simulation(scenario, LENGTHS).run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", [0.5, 3.0])
def test_every_request_ends_or_is_refused(policy: str, load: float) -> None:
    figures = run(replace(SMALL, policy=policy, load=load, slots=4, waiting_places=4))
    assert figures["requests"] > 50
    assert figures["ended"] + figures["refused"] == figures["requests"]
    assert (figures["refused"] > 0) == (load > 1)
    assert figures["refused_although_room"] <= figures["refused"]


def test_a_seed_gives_the_same_figures() -> None:
    assert run(SMALL) == run(SMALL)
    assert run(SMALL) != run(replace(SMALL, seed=2))


def test_one_router_with_old_reports_is_as_good_as_fresh_counts() -> None:
    one = replace(SMALL, workers=20, routers=1, report_period_s=5.0)
    assert run(one)["token_s"] == run(replace(one, policy="FRESH_COUNTS"))["token_s"]


def test_all_policies_get_the_same_requests() -> None:
    figures = [run(replace(SMALL, policy=policy))["requests"] for policy in POLICIES]
    assert len(set(figures)) == 1


def test_many_routers_do_not_send_all_to_the_same_worker() -> None:
    """Without `policies.spread` the slowest twentieth takes two and a half times as long as with fresh counts."""
    many = Scenario(policy="SHORTEST_QUEUE", workers=100, routers=16, warm_up_s=30.0, measured_s=20.0)
    late, fresh = run(many), run(replace(many, policy="FRESH_COUNTS"))
    assert fresh["token_s"]["p95"] <= late["token_s"]["p95"] < 1.5 * fresh["token_s"]["p95"]
    assert fresh["imbalance"] < late["imbalance"]
    lottery = run(replace(many, policy="LOTTERY"))
    assert late["token_s"]["p95"] < 0.7 * lottery["token_s"]["p95"]


def test_users_stay_at_their_home_until_it_dies() -> None:
    users = replace(SMALL, workers=20, users=500, load=0.7, measured_s=60.0)
    figures = run(users)
    lost = run(replace(users, lose_at_s=50.0))
    assert figures["at_home"] > 0.4  # one in twenty would be chance
    assert lost["at_home"] > 0.4
    assert lost["moved"] > 0
    assert lost["ended"] + lost["refused"] == lost["requests"]


def test_a_worker_computes_as_fast_as_its_steps() -> None:
    step_s = step_times_s(LENGTHS, 2)
    worker = SimulatedWorker("w", 2.0, step_s, waiting_places=1)
    jobs = [Job(number, 0, None, tokens, 0.0, tokens) for number, tokens in enumerate((10, 30, 5))]
    assert all(worker.add(job, 0.0) for job in jobs)
    assert not worker.add(jobs[0], 0.0)
    assert worker.length() == 3
    first_s = worker.next_end_s()
    assert first_s is not None
    assert first_s == pytest.approx(10 * step_s[2] / 2)
    assert worker.end_next(first_s) is jobs[0]
    second_s = worker.next_end_s()
    assert second_s is not None
    assert second_s == pytest.approx(first_s + 5 * step_s[2] / 2)
    assert worker.end_next(second_s) is jobs[2]
    assert jobs[2].started_s == first_s
    assert [job.tokens for job in worker.lose(second_s)] == [15]
    assert worker.next_end_s() is None


def test_the_load_is_what_the_workers_can_serve() -> None:
    """With one and a half times of it about a third is refused, when the queues have filled."""
    full = replace(SMALL, load=1.5, slots=8, waiting_places=8, warm_up_s=120.0, measured_s=200.0)
    figures = run(full)
    assert figures["refused"] / figures["requests"] == pytest.approx(1 / 3, abs=0.08)
    assert requests_per_s(LENGTHS, 8) == pytest.approx(8 / step_times_s(LENGTHS, 8)[8] / LENGTHS.mean_output())
