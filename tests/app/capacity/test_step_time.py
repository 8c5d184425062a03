import pytest

from app.capacity.machine import TIERS, VENDORS
from app.capacity.shares import Shares, shares_of
from app.capacity.step_time import Step, StepTimes, decode_step, prompt_steps
from tests.app.capacity.shapes import demand, machine

ALL = Shares(1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.0, 1.0)


def test_at_best_the_longer_of_reading_and_multiplying_counts() -> None:
    model = demand()
    times = StepTimes(model, machine(), ALL, "int16")
    one, many = decode_step(1, 100), decode_step(64, 100)
    one_s, one_limit = times.best_s(one)
    assert one_s == pytest.approx((model.read_bytes(1) + 101 * model.kv_bytes_per_token("int16")) / 50e9)
    assert one_limit == "read"
    many_s, many_limit = times.best_s(many)
    assert many_s == pytest.approx(64 * (model.weights + 101 * model.attention_macs_per_key) / 400e9)
    assert many_limit == "compute"


def test_with_all_shares_one_reading_and_multiplying_add_up() -> None:
    model = demand()
    time = StepTimes(model, machine(), ALL, "int16").expected(decode_step(3, 0))
    read_s = (model.read_bytes(3) + 3 * model.kv_bytes_per_token("int16")) / 50e9
    assert time.seconds == pytest.approx(read_s + 3 * (model.weights + model.attention_macs_per_key) / 400e9)
    assert time.limit == "read"


def test_attention_multiplies_in_answers_too() -> None:
    model = demand()
    times = StepTimes(model, machine(), ALL, "int16")
    short, long = (times.expected(decode_step(16, context)).compute_s for context in (0, 1000))
    assert long - short == pytest.approx(16_000 * model.attention_macs_per_key / 400e9)


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("shape", ["smollm2-135m", "tinyllama-1.1b", "qwen3-32b"])
def test_nothing_is_expected_to_be_faster_than_the_best(tier: str, vendor: str, shape: str) -> None:
    node = machine(tier=tier, vendor=vendor)
    times = StepTimes(demand(shape), node, shares_of(tier, node.vendor)[0], "int16")
    for step in [*(decode_step(n, c) for n in (1, 4, 32, 200) for c in (1, 900, 20_000)), *prompt_steps(1200, 300)]:
        assert times.expected(step).seconds > times.best_s(step)[0] > 0


def test_a_narrow_model_multiplies_more() -> None:
    from dataclasses import replace

    model = demand("smollm2-135m")
    step = Step(prompt_tokens=512)
    narrow = StepTimes(model, machine(), ALL, "int16").expected(step).compute_s
    wide = StepTimes(replace(model, hidden=1024), machine(), ALL, "int16").expected(step).compute_s
    assert narrow == pytest.approx(2 * wide)


def test_a_prompt_s_steps_attend_to_every_key_before_them_once() -> None:
    steps = prompt_steps(1100, history_tokens=50)
    assert [step.prompt_tokens for step in steps] == [512, 512, 76]
    assert sum(step.prompt_keys for step in steps) == sum(50 + n for n in range(1, 1101))
    assert [step.heads for step in steps] == [0, 0, 1]
    assert steps[-1].prompt_context == 1150


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("tier", TIERS)
def test_no_share_is_more_than_the_machine_has(tier: str, vendor: str) -> None:
    shares, _ = shares_of(tier, vendor)
    of_rates = (shares.read, shares.kv_read, shares.decode, shares.prompt, shares.attention)
    assert max(of_rates) <= 1
    assert shares.narrow >= 1
