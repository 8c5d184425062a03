"""What `redoubt bench scale --ingress` measures of a real service."""

from pathlib import Path

import pytest

from bench.scale.ingress_cost import IngressOptions, ingress_costs

pytestmark = pytest.mark.service


def test_an_ingress_of_a_real_service() -> None:
    model = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"
    costs = ingress_costs(IngressOptions(model=model, streams=4, rounds=1, generate=60))
    assert costs["tokens_per_s"] > 1
    assert costs["parts"]["ingress"]["share_of_a_core"] > 0
    assert costs["parts"]["worker"]["share_of_a_core"] > costs["parts"]["ingress"]["share_of_a_core"]
