"""A native model with latent attention under the engine: the same tokens, batched, cut, preempted or cached."""

from pathlib import Path

import pytest

from quant.families.description import Attention, Decoder, Experts, Latent, Layer, Mlp, Rope
from tests.engine.native_runs import outputs
from tests.engine.test_page_groups_native import SHAPES, made_requests, running
from tests.kernels.tiny_model import described_tensors, write_described
from tests.sizes import some

LATENT = Attention(0.2, latent=Latent(kv_rank=32, nope_dim=32, rope_dim=16, value_dim=32, query_rank=64))
EXPERTS = Experts(8, 2, 32, scoring="sigmoid", correction_bias=True, renormalize=True, shared_inner=64)
DECODER = Decoder(
    vocab_size=96, hidden_size=64, max_positions=2048, heads=4, kv_heads=1, head_dim=48,
    ropes=(Rope(16, tuple(10.0 ** (-i / 4) for i in range(8))),),
    kinds=(Layer(LATENT, mlp=Mlp(96)), Layer(LATENT, experts=EXPERTS)), layers=(0, 1, 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latent") / "model"
    return write_described(folder, DECODER, {}, described_tensors(DECODER), "sym_int4")


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, tuple[int, ...]]:
    """Without a cache, one after the other."""
    with running(model, "batched", page_groups=False, prefix_cache=False) as engine:
        return {name: tokens for each in made_requests() for name, tokens in outputs(engine, [each]).items()}


@pytest.mark.parametrize(("shape", "prefix_cache"), some([*SHAPES], [True, False]))
def test_the_same_tokens(
    shape: str,
    prefix_cache: bool,
    model: Path,
    expected: dict[str, tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SHAPES, "preempted", (1, 8, 64, 64, 16))  # pages of all layers: fewer are too few
    assert len(set(expected.values())) == len(expected)
    requests = made_requests()
    with running(model, shape, page_groups=False, prefix_cache=prefix_cache) as engine:
        assert outputs(engine, requests) == expected
        assert outputs(engine, requests[::-1]) == expected, "from the cache, in another order"
        counts = engine.statistics()
        assert (counts.preemptions > 0) == (shape == "preempted")
        assert (counts.cached_tokens > 0) == prefix_cache
