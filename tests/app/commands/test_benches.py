from importlib.util import find_spec

import pytest

from app.commands.benches import BENCHES, NEED_VERIFIER, load, usage


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_has_a_command(name: str) -> None:
    assert callable(load(name))


def test_the_usage_tells_what_each_measures() -> None:
    lines = usage().splitlines()
    assert all(
        any(line.split()[:1] == [name] and about in line for line in lines) for name, (_, about) in BENCHES.items()
    )


def test_what_needs_the_verifier_is_a_bench() -> None:
    assert set(NEED_VERIFIER) <= set(BENCHES)
    assert find_spec("redoubt_verify") is not None
