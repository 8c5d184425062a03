"""The AMX tier: its emulated tile registers against the SDM's pseudo-code, its int8 kernel against the scalar twin.

tests/kernels/test_linear.py runs over both too, as over every tier; of bf16 there is test_bf16.py.
"""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.kernel_cases import INTEGER_TYPES, LinearCase, make_weights
from kernels import _native
from kernels._native import testing
from tests.kernels.test_linear import F32, activations, first_rows, run_int8, same_bits

EMULATED = "amx_int8_emulated"
AMX_TIERS = [
    pytest.param(
        "amx_int8",
        marks=pytest.mark.skipif(
            "amx_int8" not in _native.available_tiers(), reason="this processor or its OS grants no AMX tiles"
        ),
    ),
    pytest.param(
        EMULATED,
        marks=pytest.mark.skipif(
            EMULATED not in testing.linear_tiers(), reason="the kernel around the tiles needs AVX-512 VNNI"
        ),
    ),
]


def tdpbssd_of_the_manual(a: NDArray[np.int8], b: NDArray[np.int8], c: NDArray[np.int32]) -> NDArray[np.int32]:
    """Intel SDM volume 2, "TDPBSSD/TDPBSUD/TDPBUSD/TDPBUUD", by rows, then depth, then columns of doublewords."""
    result = c.astype(np.int64)
    for m in range(c.shape[0]):
        for k in range(a.shape[1] // 4):
            for n in range(c.shape[1]):
                x, y = a[m, 4 * k : 4 * k + 4], b[k, 4 * n : 4 * n + 4]
                result[m, n] += (x.astype(np.int64) * y.astype(np.int64)).sum()
    return result.astype(np.uint64).astype(np.uint32).view(np.int32)  # doublewords wrap


@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (1, 1, 1), (9, 8, 16), (16, 3, 5), (5, 16, 1)])
def test_the_emulated_dot_product_is_the_manuals(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(m * 100 + k * 10 + n)
    # Rows further apart than they are long, and something around them that must neither be read nor written.
    a = rng.integers(-128, 128, (m, 4 * k + 7)).astype(np.int8)
    b = rng.integers(-128, 128, (k, 4 * n + 5)).astype(np.int8)
    c = rng.integers(-(2**31), 2**31, (m, n + 3)).astype(np.int32)
    a[0, :4], b[0, :4], c[0, 0] = -128, -128, 2**31 - 1
    expected = c.copy()
    expected[:, :n] = tdpbssd_of_the_manual(a[:, : 4 * k], b[:, : 4 * n], c[:, :n])
    testing.emulate_tdpbssd(a[:, : 4 * k], b[:, : 4 * n], c[:, :n])
    assert (c == expected).all()


def tdpbf16ps_of_the_manual(a: NDArray[np.uint16], b: NDArray[np.uint16], c: F32) -> F32:
    """Intel SDM volume 2, "TDPBF16PS"; for numbers near 1, whose products and sums are exact in float64."""
    x, y = (half.astype(np.uint32) << 16 for half in (a, b))
    x, y = x.view(np.float32).astype(np.float64), y.view(np.float32).astype(np.float64)
    x, y = (np.where(np.abs(factor) < np.finfo(np.float32).tiny, 0.0, factor) for factor in (x, y))
    result = c.copy()
    for m in range(c.shape[0]):
        for n in range(c.shape[1]):
            sums = np.zeros(2, np.float32)
            for k in range(b.shape[0]):
                products = x[m, 2 * k : 2 * k + 2] * y[k, 2 * n : 2 * n + 2]
                sums = (sums + products).astype(np.float32)
            result[m, n] += sums[0] + sums[1]
    return result


@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (1, 1, 1), (9, 8, 16), (16, 3, 5), (5, 16, 1)])
def test_the_emulated_bf16_product_is_the_manuals(m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(m * 100 + k * 10 + n)

    def halves(rows: int, cols: int) -> NDArray[np.uint16]:
        """Rows further apart than they are long."""
        wide = rng.standard_normal((rows, cols + 3)).astype(np.float32)
        return (wide.view(np.uint32) >> 16).astype(np.uint16)

    a, b = halves(m, 2 * k), halves(k, 2 * n)
    a[0, 0] = 0x0001  # subnormal: counts as 0
    c = rng.standard_normal((m, n + 3)).astype(np.float32)
    expected = c.copy()
    expected[:, :n] = tdpbf16ps_of_the_manual(a[:, : 2 * k], b[:, : 2 * n], c[:, :n])
    testing.emulate_tdpbf16ps(a[:, : 2 * k], b[:, : 2 * n], c[:, :n])
    assert same_bits(c, expected)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (((4, 8), (3, 16), (4, 4)), "the factors differ in depth"),
        (((3, 8), (2, 16), (4, 4)), "sums and first factor differ in rows"),
        (((4, 8), (2, 12), (4, 4)), "sums and second factor differ in columns"),
        (((4, 6), (1, 16), (4, 4)), "no multiple of 4 bytes"),
        (((0, 8), (2, 16), (4, 4)), "bytes without rows"),
        (((0, 0), (2, 16), (4, 4)), "tileloadd: the register has no shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_faults_on_a_processor_ends_the_process(
    shapes: tuple[tuple[int, int], tuple[int, int], tuple[int, int]], reason: str
) -> None:
    a, b, c = shapes
    code = (
        "import numpy as np; from kernels._native import testing; "
        f"testing.emulate_tdpbssd(np.zeros({a}, np.int8), np.zeros({b}, np.int8), np.zeros({c}, np.int32))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode < 0
    assert reason in run.stderr


@pytest.mark.parametrize("tier", AMX_TIERS)
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("weight_type", INTEGER_TYPES)
def test_every_number_of_rows_equals_the_scalar_twin(weight_type: str, group: int, terms: int, tier: str) -> None:
    """Blocks of every height, whole and half steps of two blocks, one pass and several; outputs that fill no tile."""
    case = LinearCase(weight_type, 41, 3 * group, group)
    weights = make_weights(case, np.random.default_rng(group))
    rows = (*range(1, 19), 31, 32, 33, 40, 48, 63, 64, 65, 100, 129)
    q = testing.quantize_rows(activations(max(rows), case.cols, group), group, "scalar", terms)
    rng = np.random.default_rng(terms)
    bias, before = rng.standard_normal(41, np.float32), rng.standard_normal((max(rows), 41), np.float32)
    plain = run_int8(case, weights, q, "scalar")
    added = run_int8(case, weights, q, "scalar", before.copy(), bias=bias, accumulate=True)
    for count in rows:
        part = first_rows(q, 0, count)
        assert same_bits(run_int8(case, weights, part, tier), plain[:count]), count
        again = run_int8(case, weights, part, tier, before[:count].copy(), bias=bias, accumulate=True)
        assert same_bits(again, added[:count]), count


def test_the_emulated_tier_is_for_tests_only() -> None:
    assert EMULATED not in _native.available_tiers()
    code = "from kernels import _native; _native.default_tier()"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "REDOUBT_ISA": EMULATED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert f"unknown kernel tier '{EMULATED}'" in run.stderr


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_the_extension_holds_the_instructions() -> None:
    """What no emulation shows: that the tier is compiled to tiles, inputs in tmm4 and 5, codes in 6 and 7."""
    listing = subprocess.run(
        ["objdump", "--disassemble", "--no-show-raw-insn", str(_native.__file__)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for instruction in ("ldtilecfg", "tilerelease", "tileloadd", "tilestored"):
        assert instruction in listing
    assert "tdpbf16ps" in listing
    assert "tileloaddt1" in listing
    dots = {"".join(line.split("tdpbssd")[1].split()) for line in listing.splitlines() if "tdpbssd" in line}
    # objdump names operands in reverse: columns, rows, sums.
    assert dots == {
        f"%tmm{codes},%tmm{inputs},%tmm{2 * (inputs - 4) + codes - 6}" for inputs in (4, 5) for codes in (6, 7)
    }
