"""The measuring parts of `redoubt bench scale`, with little to measure."""

import os
import time
from pathlib import Path

import pytest

from bench.scale import ingress_cost
from bench.scale.accounts_cost import accounts_costs
from bench.scale.ingress_cost import IngressOptions, _costs, _Round
from bench.scale.routing_cost import routing_costs


def test_a_choice_among_more_workers_takes_longer() -> None:
    costs = routing_costs((1, 300))
    assert set(costs) == {"LOTTERY", "SHORTEST_QUEUE"}
    for by_count in costs.values():
        assert 0 < by_count["1"]["choice"] < by_count["300"]["choice"] < 100
        assert by_count["300"]["broadcast_kib"] > 200


def test_accounts_admit_requests() -> None:
    costs = accounts_costs(requests=40)
    assert costs["requests_per_s"] > 0
    assert costs["request_ms"] > 0


def test_tokens_and_requests_are_told_apart() -> None:
    """16 requests that take 3 ms each, and 50 us for each token."""
    options = IngressOptions(model=Path("m"), streams=16, generate=102)

    def a_round(tokens: int) -> _Round:
        return _Round(2.0, {"ingress": 16 * (0.003 + tokens * 50e-6)})

    costs = _costs("ingress", [a_round(2)] * 3, [a_round(102)] * 3, options)
    assert costs == {"token_us": 50.0, "request_us": 3000.0, "share_of_a_core": 0.065}


def test_processor_time_is_that_of_each_process_by_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dict.fromkeys(("haproxy", "controller", "worker"), "no such command line")
    monkeypatch.setattr(ingress_cost, "PROCESSES", {"ingress": "python", **nothing})
    before_s = ingress_cost._cpu_s(os.getpid())
    assert set(before_s["ingress"]) >= {os.getpid()}
    assert before_s["worker"] == {}
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    assert ingress_cost._cpu_s(os.getpid())["ingress"][os.getpid()] >= before_s["ingress"][os.getpid()] + 0.05
