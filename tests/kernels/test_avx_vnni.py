"""The AVX-VNNI tier where the processor lacks it: its twin in AVX-512's encoding goes through test_linear.py."""

import re
import shutil
import subprocess
from collections import Counter

import pytest

from kernels import _native
from kernels._native import testing

EVEX = "avx_vnni_evex"


def test_the_twin_is_for_tests_only() -> None:
    assert (EVEX in testing.linear_tiers()) == ("avx512_vnni" in _native.available_tiers())
    assert EVEX not in _native.available_tiers()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_the_twin_is_the_tier_but_for_the_encoding() -> None:
    """What no processor here may show: 256-bit products in both encodings, as many of one as of the other."""
    listing = subprocess.run(["objdump", "-d", _native.__file__], capture_output=True, text=True, check=True).stdout
    first_bytes = Counter(re.findall(r":\t([0-9a-f]{2}) .*vpdpbusd .*%ymm", listing))
    assert set(first_bytes) == {"c4", "62"}  # VEX, EVEX
    assert first_bytes["c4"] == first_bytes["62"]
