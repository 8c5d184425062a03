import os
import subprocess
import sys

import pytest

from kernels import _native


def default_tier_under(forced: str) -> subprocess.CompletedProcess[str]:
    code = "from kernels import _native; print(_native.default_tier())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "REDOUBT_ISA": forced},
        capture_output=True,
        text=True,
        check=False,
    )


def test_tiers_are_ordered_and_start_with_scalar() -> None:
    every = ["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx_int8"]
    tiers = _native.available_tiers()
    assert tiers == sorted(tiers, key=every.index)
    assert tiers[0] == "scalar"
    # Each but avx_vnni, which processors with AVX-512 may lack, stands on the one below.
    rest = [tier for tier in tiers if tier != "avx_vnni"]
    assert rest == [tier for tier in every if tier != "avx_vnni"][: len(rest)]


@pytest.mark.parametrize("tier", _native.available_tiers())
def test_the_environment_forces_a_tier(tier: str) -> None:
    assert default_tier_under(tier).stdout.strip() == tier


def test_an_unknown_tier_is_refused_by_name() -> None:
    run = default_tier_under("sse9")
    assert run.returncode != 0
    assert "REDOUBT_ISA" in run.stderr
    assert "'sse9'" in run.stderr
    assert "scalar" in run.stderr


def test_the_processor_has_a_name() -> None:
    assert _native.cpu_model()


def test_a_numa_node_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        _native.bind_memory_to_node(-1)
    with pytest.raises(OSError, match="node 1023"):
        _native.bind_memory_to_node(1023)
