from dataclasses import replace

import pytest

from app.capacity import drafts, simulation, users
from app.capacity.demand import CapacityError, Demand
from app.capacity.drafts import draft_plan
from app.capacity.memory import memory_of
from app.capacity.plan import candidates_for, make_plan
from app.capacity.processors import table_machine
from app.capacity.simulation import simulate
from app.capacity.step_time import StepTimes, decode_step, drafted_step
from app.capacity.traffic import Slo, Traffic
from app.capacity.users import load_outcome, step_times
from tests.app.capacity.shapes import demand, machine


def test_the_users_of_a_plan_get_the_promise_and_many_more_do_not() -> None:
    model, node, traffic = demand(), machine(), Traffic(prompt_tokens=10)
    plan = make_plan(model, node, traffic, wanted_users=10_000)
    assert plan.users.users > 1
    assert plan.users.requests_per_s == pytest.approx(plan.users.users / 60)

    def kept(users: int) -> bool:
        return load_outcome(model, node, traffic, Slo(), plan.kv_type, users).kept

    assert kept(plan.users.users)
    assert not kept(plan.users.users * 2)
    assert plan.serves_wanted is False
    assert {speed.work for speed in plan.speeds} == {"prompt", "decode"}
    assert all(speed.expected_tokens_per_s < speed.best_tokens_per_s for speed in plan.speeds)


def test_two_nodes_serve_twice_the_users() -> None:
    traffic = Traffic(prompt_tokens=10)
    one = make_plan(demand(), machine(), traffic).users
    two = make_plan(demand(), machine(nodes=2, memory_bytes=64 << 30), traffic).users
    # The second worker's processes take a little of the memory.
    assert two.users == pytest.approx(2 * one.users, rel=0.1)
    assert one.users > 1


def test_what_limits_is_what_helps_when_there_is_more_of_it() -> None:
    slow_read = machine(read_bytes_per_s=5e9, macs_per_s=4e12)
    slow_compute = machine(read_bytes_per_s=500e9, macs_per_s=50e9)
    little_memory = machine(memory_bytes=4_100_000_000)
    small = demand("tinyllama-1.1b")
    assert make_plan(small, slow_read, Traffic()).users.limit == "read"
    assert make_plan(small, slow_compute, Traffic()).users.limit == "compute"
    traffic = Traffic(prompt_tokens=10, answer_tokens=50, seconds_between=600)
    assert make_plan(small, little_memory, traffic).users.limit == "memory"


def test_a_model_that_does_not_fit_serves_nobody() -> None:
    plan = make_plan(demand("llama3.1-70b"), machine(memory_bytes=24 << 30), Traffic())
    assert (plan.users.users, plan.users.limit, plan.serves_wanted) == (0, "memory", None)
    assert plan.memory.kv_bytes_per_worker == 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_settings_are_enough_for_the_users(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "REQUESTS", 1500)
    model, node, traffic = demand(), machine(nodes=nodes), Traffic(prompt_tokens=10, context_tokens=300)
    plan = make_plan(model, node, traffic)
    settings = plan.users.settings
    kv_bytes = settings["engine.kv_memory_bytes"]
    assert settings["worker.count"] == nodes
    assert kv_bytes < plan.memory.kv_bytes_per_worker
    outcome = simulate(
        step_times(model, node), traffic, Slo(), kv_tokens=kv_bytes // plan.memory.kv_bytes_per_token,
        most_running=settings["worker.max_concurrent_requests"], users=plan.users.users // nodes, context_tokens=2048,
    )  # fmt: skip
    assert outcome.kept
    assert outcome.history_share == 1.0


def test_a_search_that_ends_says_that_there_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MOST_USERS", 5)
    found = make_plan(demand(), machine(), Traffic(prompt_tokens=10)).users
    assert (found.users, found.is_more) == (5, True)


def test_too_few_places_limit() -> None:
    huge = machine(read_bytes_per_s=4e12, macs_per_s=4e14, memory_bytes=2 << 40)
    patient = Slo(token_s=60.0, first_token_s=60.0)
    slow = Traffic(prompt_tokens=4, answer_tokens=900, context_tokens=0)
    found = make_plan(demand(), huge, slow, slo=patient).users
    assert found.running_per_worker == users.MOST_RUNNING
    assert found.limit == "places"


@pytest.mark.parametrize("qtype", ["bf16", "fp32"])
def test_types_that_nobody_measured_are_refused(qtype: str) -> None:
    with pytest.raises(CapacityError, match=f"with {qtype} weights is not measured"):
        make_plan(demand(qtype=qtype), machine(), Traffic())


def test_memory_adds_up() -> None:
    node = machine(nodes=2, memory_bytes=64 << 30)
    memory = memory_of(demand(), node, Traffic(), "int8")
    assert memory.weight_bytes == 2 * demand().weight_bytes
    used = memory.weight_bytes + memory.service_bytes + 2 * memory.kv_bytes_per_worker
    assert used == pytest.approx(0.9 * node.memory_bytes, abs=2)
    assert memory.kv_tokens_per_worker == memory.kv_bytes_per_worker // demand().kv_bytes_per_token("int8")


def test_a_second_socket_is_proposed_where_one_is_not_enough() -> None:
    names = ("epyc-9354", "ryzen-9-5950x")
    alone = make_plan(demand("llama3.1-8b"), table_machine("epyc-9354"), Traffic()).users.users
    few = candidates_for(demand("llama3.1-8b"), Traffic(), Slo(), 1, None, names)
    assert few[0].name == "epyc-9354"
    assert few[0].serves
    many = candidates_for(demand("llama3.1-8b"), Traffic(), Slo(), int(alone * 1.6), None, names)
    assert [(each.name, each.serves) for each in many] == [("2x-epyc-9354", True), ("ryzen-9-5950x", False)]


def test_layers_with_windows_leave_memory_to_more_answers_where_pages_are_not_saved() -> None:
    model, traffic = demand("gpt-oss-20b"), Traffic()
    one = memory_of(model, machine(memory_bytes=64 << 30), traffic, "int16")
    two = memory_of(model, machine(nodes=2, memory_bytes=64 << 30), traffic, "int16")
    tokens = 1024 + 36 + 264
    assert one.answers_per_worker == one.kv_tokens_per_worker // ((tokens + 128) // 2)
    assert two.answers_per_worker == two.kv_tokens_per_worker // tokens


def test_a_model_with_experts_decodes_faster_and_gains_less_by_answers_at_once() -> None:
    sparse, dense = (step_times(demand(shape), machine()) for shape in ("qwen3-30b-a3b", "qwen3-32b"))

    def gain(times: StepTimes, answers: int) -> float:
        return answers * times.expected(decode_step(1, 100)).seconds / times.expected(decode_step(answers, 100)).seconds

    def rate(times: StepTimes) -> float:
        return 1 / times.expected(decode_step(1, 100)).seconds

    assert rate(sparse) > 5 * rate(dense)
    assert gain(sparse, 4) < 0.75 * gain(dense, 4)


def test_a_draft_model_leaves_less_memory_to_users() -> None:
    model, draft = demand("qwen3-8b"), demand("qwen3-0.6b")
    traffic = Traffic(prompt_tokens=10, answer_tokens=50, seconds_between=600)
    node = machine(memory_bytes=12 << 30, read_bytes_per_s=200e9, macs_per_s=2e12)
    alone, drafted = (make_plan(model, node, traffic, draft=one) for one in (None, draft))
    assert drafted.users.users < alone.users.users
    assert drafted.users.settings["engine.kv_memory_bytes"] <= drafted.memory.kv_bytes_per_worker
    beside = drafted.memory.kv_tokens_per_worker * draft.kv_bytes_per_token("int16")
    used = drafted.memory.weight_bytes + drafted.memory.service_bytes + drafted.memory.kv_bytes_per_worker + beside
    assert used == pytest.approx(0.9 * node.memory_bytes, abs=1 << 20)
    layer = memory_of(replace(model, predictors=1), node, traffic, "int16")
    assert layer.kv_bytes_per_token == alone.memory.kv_bytes_per_token
    assert layer.kv_tokens_per_worker == pytest.approx(alone.memory.kv_tokens_per_worker * 36 / 37, rel=1e-3)
    both = memory_of(replace(model, predictors=1), node, traffic, "int16", draft)
    assert both.draft_bytes_per_token == draft.kv_bytes_per_token("int16"), "only the draft model is loaded"
    assert both.kv_tokens_per_worker == drafted.memory.kv_tokens_per_worker
    full = machine(memory_bytes=8_500_000_000, read_bytes_per_s=200e9, macs_per_s=2e12)
    names = ("epyc-9354",)
    assert make_plan(model, full, traffic).users.users > 0
    assert make_plan(model, full, traffic, draft=demand("qwen3-4b")).users.users == 0
    assert candidates_for(model, traffic, Slo(), 1, None, names, draft)[0].serves


def test_draft_rows_read_the_keys_of_their_answer_once() -> None:
    times = step_times(demand("qwen3-8b"), machine(macs_per_s=1e16))
    one, drafted, rows = (
        times.expected(step).read_s
        for step in (decode_step(1, 16_000), drafted_step(1, 7, 16_000), decode_step(8, 16_000))
    )
    assert drafted == one < rows / 2
    computed = [times.expected(step).compute_s for step in (drafted_step(1, 7, 16_000), decode_step(8, 16_000))]
    assert computed[0] == pytest.approx(computed[1])


def test_short_answers_to_long_prompts_gain_less_by_a_draft_model_and_as_much_by_a_layer() -> None:
    model, node = demand("qwen3-8b"), machine()

    def gain(draft: Demand, answer_tokens: int, prompt_tokens: int) -> float:
        traffic = Traffic(prompt_tokens=prompt_tokens, answer_tokens=answer_tokens, context_tokens=0)
        return draft_plan(model, draft, node, traffic, "int16").speeds[0].gain

    small = demand("qwen3-0.6b")
    assert gain(small, 16, 2048) == 1 < gain(small, 64, 256) < gain(small, 1024, 256)
    layer = replace(small, is_head=True, hidden=model.hidden)
    assert gain(layer, 16, 2048) == pytest.approx(gain(layer, 1024, 2048))


def test_a_head_drafts_deeper_than_the_layer_of_the_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "RIGHT_SHARE", 0.95)
    model = replace(demand("qwen3-8b"), predictors=1)
    head = replace(demand("qwen3-0.6b"), is_head=True, hidden=model.hidden, layers=1)
    node = machine(macs_per_s=1e16)  # rows are free
    plans = [make_plan(model, node, Traffic(), draft=head), make_plan(model, node, Traffic(), own_layer=head)]
    depths = [plan.draft.speeds[0].draft_tokens for plan in plans if plan.draft is not None]
    assert depths[0] > depths[1] == 4


def test_what_serve_would_refuse_as_a_draft_is_refused() -> None:
    model, traffic = demand("llama3.1-8b"), Traffic()
    with pytest.raises(CapacityError, match=r"qwen3-0\.6b has another vocabulary than llama3\.1-8b, 151,936 tokens"):
        make_plan(model, machine(), traffic, draft=demand("qwen3-0.6b"))
    head = replace(demand("llama3.1-8b"), is_head=True, hidden=2048)
    with pytest.raises(CapacityError, match="a head for a hidden size of 2048"):
        make_plan(model, machine(), traffic, draft=head)
    padded = replace(demand("qwen3-0.6b"), vocab_size=152_064)
    assert make_plan(demand("qwen3-8b"), machine(), traffic, draft=padded).draft is not None
