import pytest

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.completions import plan_completion
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest
from app.messages.requests import SamplingParams
from tests.app.tiny_model import CONTEXT_TOKENS, EOS_ID, tiny_model

MODEL = tiny_model()
LIMITS = Limits(default_max_tokens=64, max_choices=4)
CALLER = Caller(tenant=b"")


def chat(**fields: object) -> Job:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return plan_chat(MODEL, ChatCompletionRequest.model_validate(body), LIMITS, CALLER, "id")


def completion(prompt: object, **fields: object) -> Job:
    request = CompletionRequest.model_validate({"model": "m", "prompt": prompt, **fields})
    return plan_completion(MODEL, request, LIMITS, CALLER, "id")


def test_a_plain_chat_request() -> None:
    job = chat()
    (request,) = job.requests
    assert request.sampling == SamplingParams()
    assert request.max_new_tokens == 64
    assert request.stop_token_ids == {EOS_ID}
    assert request.prompt_token_ids[-1:] != (EOS_ID,)
    assert job.prompt_tokens == len(request.prompt_token_ids)


def test_every_sampling_parameter_reaches_the_engine() -> None:
    job = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={"5": -100.0},
        seed=-1,
        stop_token_ids=[9],
        ignore_eos=True,
        max_completion_tokens=3,
    )
    assert job.requests[0].sampling == SamplingParams(0.5, 7, 0.9, 0.1, 1.2, 0.3, -0.4, {5: -100.0}, 2**64 - 1)
    assert job.requests[0].stop_token_ids == {9}
    assert job.requests[0].max_new_tokens == 3


@pytest.mark.parametrize(
    ("fields", "temperature"),
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
        ({"do_sample": None, "temperature": 0}, 0.0),
    ],
)
def test_sampling_is_turned_on_and_off(fields: dict[str, object], temperature: float) -> None:
    assert chat(**fields).requests[0].sampling.temperature == temperature


@pytest.mark.parametrize("fields", [{"do_sample": True, "temperature": 0}, {"do_sample": False, "temperature": 0.5}])
def test_a_temperature_that_contradicts_it_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.status == 400
    assert "do_sample" in str(refused.value)


def test_a_request_may_leave_the_cache_out() -> None:
    uses = [chat(**fields).requests[0].uses_cache for fields in ({}, {"use_cache": True}, {"use_cache": False})]
    assert uses == [True, True, False]


def test_a_request_that_does_not_say_is_sampled_as_its_model_recommends() -> None:
    recommended = {"temperature": 0.2, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    model = tiny_model(generation_config=recommended)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

    def sampling(**fields: object) -> SamplingParams:
        request = ChatCompletionRequest.model_validate({**body, **fields})
        return plan_chat(model, request, LIMITS, CALLER, "id").requests[0].sampling

    assert sampling() == SamplingParams(0.2, 20, 0.9, 0.05, 1.1)
    own = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    assert sampling(**own) == SamplingParams()


def test_choices_of_one_seed_differ_and_have_names_of_their_own() -> None:
    job = chat(n=3, seed=7)
    assert [request.sampling.seed for request in job.requests] == [7, 8, 9]
    assert len({request.request_id for request in job.requests}) == 3


def test_completions_default_to_sixteen_tokens_and_make_choices_of_every_prompt() -> None:
    job = completion([[4], [5, 6]], n=2)
    assert [request.prompt_token_ids for request in job.requests] == [(4,), (4,), (5, 6), (5, 6)]
    assert {request.max_new_tokens for request in job.requests} == {16}
    assert job.prompt_tokens == 3


def test_a_default_limit_shrinks_to_what_the_context_holds() -> None:
    assert completion([[5] * (CONTEXT_TOKENS - 3)]).requests[0].max_new_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ([[5] * CONTEXT_TOKENS], {}, "prompt"),
        ("x" * 100_000, {}, "prompt"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(prompt: object, fields: dict[str, int], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt, **fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "context_length_exceeded", param)
    assert str(CONTEXT_TOKENS) in caught.value.message


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("", {}, "prompt"),
        ([[10_000]], {}, "prompt"),
        ("a", {"stop_token_ids": [10_000]}, "stop_token_ids"),
        ("a", {"logit_bias": {"10000": 1.0}}, "logit_bias"),
        ("a", {"n": 5}, "n"),
        (["a", "b", "c"], {"n": 2}, "prompt"),
        ("a", {"best_of": 5}, "best_of"),
        ("a", {"best_of": 1, "n": 2}, "best_of"),
        ("a", {"best_of": 2, "stream": True}, "best_of"),
        ("a", {"min_tokens": 17}, "min_tokens"),
    ],
)
def test_what_the_model_or_the_service_does_not_allow(prompt: object, fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_two_limits_that_contradict_each_other() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).requests[0].max_new_tokens == 5
    with pytest.raises(ApiError, match="contradict"):
        chat(max_tokens=5, max_completion_tokens=6)


def test_a_longer_output_than_the_context_leaves_is_cut_to_it() -> None:
    assert completion([[5] * 10], max_tokens=CONTEXT_TOKENS).requests[0].max_new_tokens == CONTEXT_TOKENS - 10
    job = chat(max_completion_tokens=32_000)
    assert job.requests[0].max_new_tokens == CONTEXT_TOKENS - job.prompt_tokens
    assert job.wanted_tokens == 32_000


def test_minus_one_is_no_limit_of_the_clients_own() -> None:
    assert chat(max_tokens=-1).requests[0].max_new_tokens == LIMITS.default_max_tokens
    assert chat(max_tokens=-1, max_completion_tokens=7).requests[0].max_new_tokens == 7
    assert chat(max_completion_tokens=-1).requests[0].max_new_tokens == LIMITS.default_max_tokens
    assert completion("a", max_tokens=-1).requests[0].max_new_tokens == LIMITS.default_max_tokens


def test_a_completion_that_shifts_has_no_end_of_context() -> None:
    fields = {"on_overflow": "shift", "max_tokens": 10**6}
    (request,) = completion([5] * 2000, **fields, n_keep=10, n_discard=128).requests
    assert request.prompt_token_ids == (5,) * (CONTEXT_TOKENS - 128)
    assert request.max_new_tokens == 10**6
    assert request.window is not None
    assert request.window.is_required
    with pytest.raises(ApiError) as caught:
        completion([5] * 2000)
    assert caught.value.code == "context_length_exceeded"


def test_a_chat_that_shifts_loses_whole_turns_and_has_no_end_of_context() -> None:
    system = {"role": "system", "content": "Be brief, whatever is asked."}
    turns = [
        {"role": role, "content": f"{number} many words " * 8} for number in range(20) for role in ("user", "assistant")
    ]
    job = chat(on_overflow="shift", max_tokens=10**6, messages=[system, *turns, {"role": "user", "content": "Why?"}])
    (request,) = job.requests
    assert request.max_new_tokens == 10**6
    assert request.window is not None
    assert (request.window.tokens, request.window.is_required) == (CONTEXT_TOKENS, False)
    assert job.left_out is not None
    text = MODEL.tokenizer.text(request.prompt_token_ids)
    assert text.startswith("<|im_start|>system\nBe brief, whatever is asked.<|im_end|>\n<|im_start|>user\n")
    assert f"user\n{job.left_out.turns} many" in text
    assert f"user\n{job.left_out.turns - 1} many" not in text
    kept = MODEL.tokenizer.text(request.prompt_token_ids[: request.window.keep_tokens])
    assert "whatever is asked" in kept
    assert "many" not in kept
    assert chat(on_overflow="refuse").requests[0].window is None
    assert chat(on_overflow="refuse").left_out is None


def test_a_smaller_window_leaves_out_more_turns() -> None:
    turns = [{"role": role, "content": "many words " * 8} for _ in range(20) for role in ("user", "assistant")]
    messages = [*turns, {"role": "user", "content": "Why?"}]
    whole, half = (chat(on_overflow="shift", messages=messages, **more) for more in ({}, {"context_window": 300}))
    assert half.prompt_tokens < whole.prompt_tokens
    assert half.left_out is not None
    assert half.left_out.limit_tokens == 192
    assert half.requests[0].window is not None
    assert half.requests[0].window.tokens == 256


def test_the_default_is_what_the_model_is_set_to() -> None:
    shifting = tiny_model(on_overflow="shift")
    body = CompletionRequest.model_validate({"model": "m", "prompt": [5] * 600})
    assert plan_completion(shifting, body, LIMITS, CALLER, "id").requests[0].window is not None
