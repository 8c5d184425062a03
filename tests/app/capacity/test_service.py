from dataclasses import asdict, replace

import pytest

from app.capacity.demand import CapacityError
from app.capacity.service import Measurement, measured_times, service_capacity
from app.capacity.step_time import decode_step, prompt_steps
from app.capacity.users import step_times
from tests.app.capacity.shapes import demand, machine


def measured(shape: str = "tinyllama-1.1b", factor: float = 1.0, kv_tokens: int = 100_000) -> Measurement:
    """Workers that take `factor` times what is expected of the machine of the tests."""
    model = demand(shape)
    times = step_times(model, machine())
    sizes = asdict(model.matrices)
    del sizes["type_name"]
    values = {
        **sizes,
        **{name: getattr(model, name) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim")},
        "windows": model.windows,
        "states": asdict(model.states),
        "mixed": None if model.mixed is None else asdict(model.mixed),
        "keeps_windows": True,
        "kv_type": "int16",
        "kv_tokens": kv_tokens,
        "vendor": "amd",
        "prompt_tokens": 128,
        "prompt_s": factor * sum(times.expected(step).seconds for step in prompt_steps(128, 0, model.keys)),
        "token_s": factor * times.expected(decode_step(1, 136, model.keys)).seconds,
        "memory_left_bytes": 0,
    }
    return Measurement("m", 1, "avx512_vnni", 2, 32, model.context_tokens, 1, values)


@pytest.mark.parametrize("factor", [0.05, 1.0, 7.0])
@pytest.mark.parametrize("shape", ["tinyllama-1.1b", "gpt-oss-20b", "qwen3.6-35b-a3b"])
def test_the_rates_are_chosen_so_that_the_warm_up_took_what_it_took(factor: float, shape: str) -> None:
    workers = measured(shape, factor=factor)
    times, faster_reads, faster_compute = measured_times(workers)
    answer, (prompt,) = decode_step(1, 136, times.keys), prompt_steps(128, 0, times.keys)
    assert times.expected(answer).seconds == pytest.approx(workers.model["token_s"], rel=1e-3)
    assert times.expected(prompt).seconds == pytest.approx(workers.model["prompt_s"], rel=1e-3)
    assert faster_reads.expected(answer).seconds < times.expected(answer).seconds
    assert faster_compute.expected(prompt).seconds < times.expected(prompt).seconds


def test_a_worker_as_expected_does_what_the_plan_expects_elsewhere_too() -> None:
    times, _, _ = measured_times(measured())
    expected = step_times(demand(), machine())
    for step in (decode_step(16, 900), prompt_steps(512)[0]):
        assert times.expected(step).seconds == pytest.approx(expected.expected(step).seconds, rel=0.05)


def test_windows_that_keep_their_keys_only_leave_memory_to_others(no_table: None) -> None:
    tight = measured("gpt-oss-20b", factor=0.05, kv_tokens=6_000)
    model = {**tight.model, "keeps_windows": False}
    some, more = service_capacity(replace(tight, model=model), 1), service_capacity(tight, 1)
    assert more.users > 1.3 * some.users > 0


def test_twice_the_workers_serve_twice_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.capacity.service.candidates_for", lambda *_: ())
    one = service_capacity(measured(factor=0.1), 5)
    two = service_capacity(replace(measured(factor=0.1), workers=2), 5)
    assert two.users == 2 * one.users > 0
    assert one.serves
    assert not service_capacity(measured(factor=9.0), 5).serves


def test_times_that_are_none_are_refused() -> None:
    workers = measured()
    with pytest.raises(CapacityError, match="the workers of m have not measured themselves"):
        service_capacity(replace(workers, model={**workers.model, "token_s": 0.0}), 1)


@pytest.fixture
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.capacity.service.candidates_for", lambda *_: ())


@pytest.mark.usefixtures("no_table")
def test_a_setting_that_limits_is_named() -> None:
    fast = measured(factor=0.02)
    few_places = replace(fast, max_running=2)
    assert service_capacity(few_places, 5).limit == "places"
    assert service_capacity(replace(few_places, max_running=4), 5).users > service_capacity(few_places, 5).users
    little = measured(factor=0.3, kv_tokens=3000)
    assert service_capacity(replace(little, max_running=256), 5).limit == "memory"
    roomy = replace(little, max_running=256, model={**little.model, "memory_left_bytes": 8 << 30})
    assert service_capacity(roomy, 5).limit == "kv_memory"
    assert service_capacity(replace(roomy, workers_there=1000), 5).limit == "memory"


@pytest.mark.usefixtures("no_table")
def test_a_cache_that_holds_no_request_serves_nobody() -> None:
    found = service_capacity(measured(kv_tokens=200), 1)
    assert (found.users, found.limit, found.serves) == (0, "memory", False)


def test_of_float_weights_no_other_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = measured()
    wide = replace(workers, model={**workers.model, "layer_bytes": 2 * workers.model["layer_weights"]})
    assert service_capacity(wide, 5).candidates is None
