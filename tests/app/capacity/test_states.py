"""Layers of Gated DeltaNet: what their states demand, and how plans count them."""

from pathlib import Path
from typing import Any

import pytest

from app.capacity.demand import Windows
from app.capacity.memory import memory_of
from app.capacity.shares import Shares
from app.capacity.states import NO_STATES, States, states_of
from app.capacity.step_time import StepTimes, decode_step, prompt_steps
from app.capacity.traffic import Slo, Traffic
from app.capacity.users import load_outcome, users_of
from app.workers.state_memory import divide
from kernels import _native
from quant.conversion.shapes import SHAPES, of_layers
from quant.families.registry import describe
from tests.app.capacity.shapes import demand, machine
from tests.kernels.tiny_model import random_tensors, write_model

ALL = Shares(1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.0, 1.0)


def test_every_fourth_layer_has_keys_and_the_others_have_states() -> None:
    model = demand("qwen3.6-35b-a3b")
    assert (model.layers, model.attention_layers, model.states.layers) == (40, 10, 30)
    assert model.kv_bytes_per_token("bf16") == 10 * 2 * 2 * 256 * 2
    assert model.attention_macs_per_key == 2 * 16 * 256 * 10
    assert model.keys.seen(1000) == 1000
    assert demand("tinyllama-1.1b").states == NO_STATES


def test_sizes_of_a_convolution_by_hand() -> None:
    decoder = {"kinds": [{"attention": {}}, {"conv": {"taps": 4}}], "layers": [1, 0, 1], "hidden_size": 64}
    assert states_of(decoder) == States(2, 2 * 4 * 32 * 64, 2 * 4 * 3 * 64, 2 * 4 * 64)


def test_sizes_of_a_state_by_hand() -> None:
    delta = {"key_heads": 2, "value_heads": 6, "key_dim": 16, "value_dim": 32}
    decoder: dict[str, Any] = {
        "kinds": [{"attention": {}}, {"delta": delta}],
        "layers": [1, 1, 0, 1],
        "hidden_size": 64,
    }
    numbers, added, inputs = 6 * 16 * 32, 2 * 16 + 6 * 32 + 6, 2 * 2 * 16 + 6 * 32
    macs = 3 * numbers + 6 * 32 * (16 + 32) + 4 * inputs
    page = numbers + 32 * (added + inputs)
    assert states_of(decoder) == States(3, 3 * 4 * page, 3 * 4 * (numbers + 16 * added), 3 * macs)
    decoder["kinds"][1]["delta"]["taps"] = 2
    assert states_of(decoder).macs_per_token == 3 * (macs - 2 * inputs)
    assert states_of({"kinds": [{"attention": {}}], "layers": [0]}) == NO_STATES


def test_a_step_reads_the_state_of_each_answer_and_a_prompt_only_multiplies() -> None:
    model, node = demand("qwen3.5-9b"), machine()
    times = StepTimes(model, node, ALL, "bf16")
    one, four = (times.expected(decode_step(answers, 0)) for answers in (1, 4))
    per_answer = model.states.read_bytes + model.kv_bytes_per_token("bf16")
    assert four.read_s - one.read_s == pytest.approx(3 * per_answer / 50e9)
    assert times.best_s(decode_step(1, 0))[0] == pytest.approx((model.read_bytes(1) + per_answer) / 50e9)
    prompt = prompt_steps(512)[0]
    macs = 512 * (model.matrices.layer_weights + model.states.macs_per_token) + model.matrices.head_weights
    assert times.best_s(prompt)[0] == pytest.approx((macs + prompt.prompt_keys * model.attention_macs_per_key) / 400e9)
    assert model.states.macs_per_token < 0.03 * model.weights


def test_states_take_memory_that_keys_then_lack() -> None:
    model, node, traffic = demand("qwen3.6-35b-a3b"), machine(memory_bytes=24 << 30), Traffic()
    memory = memory_of(model, node, traffic, "bf16")
    assert memory.state_bytes_per_answer == 2 * model.states.page_bytes
    per_answer = memory.kv_bytes_per_worker / memory.answers_per_worker
    assert per_answer >= 2 * memory.state_bytes_per_answer, "states get half of the memory"
    assert memory.most_answers == memory.answers_per_worker
    assert memory.state_tokens * memory.kv_bytes_per_token == pytest.approx(memory.state_bytes_per_answer, rel=1e-3)
    few = load_outcome(model, node, traffic, Slo(), "bf16", memory.answers_per_worker)
    assert 0 < few.running_most <= memory.answers_per_worker
    assert memory_of(demand(), node, traffic, "bf16").most_answers is None


def test_the_settings_of_a_plan_hold_the_states_of_all_places() -> None:
    model = demand("qwen3.6-35b-a3b")
    users = users_of(
        model, machine(cores_per_node=32, macs_per_s=4e12, memory_bytes=64 << 30), Traffic(), Slo(), "bf16"
    )
    places = users.settings["worker.max_concurrent_requests"]
    divided = divide(
        users.settings["engine.kv_memory_bytes"],
        page_bytes=model.states.page_bytes,
        least_kv_bytes=1 << 26,
        sequences=places,
    )
    assert divided.sequences == places


@pytest.mark.parametrize("shape", ["qwen3-next-80b-a3b", "qwen3.5-9b"])
def test_a_page_takes_what_the_engine_s_does(shape: str, tmp_path: Path) -> None:
    config = of_layers(SHAPES[shape], 4)
    decoder = describe(config, shape)
    small = {
        **config,
        "vocab_size": 300,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    }
    folder = write_model(tmp_path / "model", small, random_tensors(small))
    assert states_of(decoder.to_dict()).page_bytes == _native.Model.state_page_bytes(str(folder))


def test_windows_are_of_layers_with_attention() -> None:
    assert Windows(demand("qwen3-next-80b-a3b").attention_layers) == Windows(12)
