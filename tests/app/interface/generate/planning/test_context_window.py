import pytest

from app.engine.scheduling.limits import SchedulerLimits
from app.interface.generate.planning.context_window import WindowOptions, plan_chat_window, plan_window, shifts
from app.interface.generate.planning.limits import OutputLimit, within_window
from app.interface.request.errors import ApiError
from app.messages.requests import ContextWindow

PROMPT = list(range(1000))
PAGE_TOKENS = 32
"""The native engine's page sizes."""


def plan(
    options: WindowOptions, *, prompt_tokens: int = 100, system_tokens: int = 30, context: int = 1024
) -> ContextWindow:
    return plan_window(options, context, prompt_tokens, system_tokens, "messages")


def test_which_requests_shift() -> None:
    assert not shifts(WindowOptions(), "refuse")
    assert shifts(WindowOptions(), "shift")
    assert shifts(WindowOptions(on_overflow="shift"), "refuse")
    assert not shifts(WindowOptions(on_overflow="refuse"), "shift")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (WindowOptions(context_window=256), "context_window"),
        (WindowOptions(n_keep=4), "n_keep"),
        (WindowOptions(n_discard=4), "n_discard"),
    ],
)
def test_shift_options_are_refused_without_shift(options: WindowOptions, field: str) -> None:
    with pytest.raises(ApiError, match=field):
        shifts(options, "refuse")


@pytest.mark.parametrize(
    ("options", "window"),
    [
        (WindowOptions(), ContextWindow(1024, 30, 497)),
        (WindowOptions(context_window=700), ContextWindow(640, 30, 305)),  # whole blocks of 128
        (WindowOptions(context_window=256), ContextWindow(256, 30, 98)),  # a block stays
        (WindowOptions(n_keep=800), ContextWindow(1024, 800, 96)),
        (WindowOptions(n_keep=-1), ContextWindow(1024, 100, 462)),
        (WindowOptions(n_keep=60, n_discard=128), ContextWindow(1024, 60, 128)),
        (WindowOptions(n_discard=-1), ContextWindow(1024, 30, 497)),
        (WindowOptions(on_overflow="shift", n_keep=0, n_discard=100), ContextWindow(1024, 0, 100)),
    ],
)
def test_windows(options: WindowOptions, window: ContextWindow) -> None:
    assert plan(options) == window


def test_without_a_system_prompt_a_few_tokens_stay() -> None:
    assert plan(WindowOptions(), system_tokens=0).keep_tokens == 4


@pytest.mark.parametrize("system_tokens", [0, 4, 30, 127])
def test_the_smallest_window_is_one_that_the_engine_takes(system_tokens: int) -> None:
    window = plan(WindowOptions(context_window=256), system_tokens=system_tokens)
    engine = SchedulerLimits(
        step_tokens=64, max_sequences=1, max_context_tokens=1024, page_tokens=PAGE_TOKENS, page_count=1024
    )
    engine.check(256, 1000, engine.window(256, 1000, window))


def test_the_smallest_window_has_no_room_for_a_longer_system_prompt() -> None:
    with pytest.raises(ApiError, match=r"256 tokens, but 128 in the prompt and 129 for the output"):
        plan(WindowOptions(context_window=256), system_tokens=128)


def test_a_prompt_longer_than_its_window_loses_its_middle() -> None:
    options = WindowOptions(context_window=256, n_keep=40, n_discard=64)
    bounded = within_window(PROMPT, OutputLimit(None, 16), options, context_tokens=1024, prompt_field="prompt")
    assert bounded.window == ContextWindow(256, 40, 64)
    assert bounded.token_ids == PROMPT[:40] + PROMPT[1000 - 152 :]


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        (WindowOptions(context_window=1025), "context_window", "invalid_value"),
        (WindowOptions(n_keep=10), "n_keep", "invalid_value"),  # of the 30 of the system prompt
        (WindowOptions(n_keep=900, n_discard=10), "n_keep", "invalid_value"),
        (WindowOptions(n_discard=900), "n_discard", "invalid_value"),
    ],
)
def test_options_that_can_not_be_met(options: WindowOptions, param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        plan(options)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_a_system_prompt_without_room_beside_it_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        plan(WindowOptions(), prompt_tokens=1000, system_tokens=900)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_a_model_of_too_small_a_context() -> None:
    with pytest.raises(ApiError, match="at least 256 tokens"):
        plan(WindowOptions(), context=255)


def test_a_chats_window_is_one_that_can_be_done_without() -> None:
    window = plan_chat_window(WindowOptions(), 1024, 100, 30)
    assert window == ContextWindow(1024, 30, 497, is_required=False)


@pytest.mark.parametrize(
    ("context_tokens", "prompt_tokens", "system_tokens"),
    [(255, 100, 30), (1024, 950, 900), (1100, 1050, 30)],
    ids=["a small context", "a long system prompt", "within the context's last block"],
)
def test_a_chat_without_room_for_a_window_has_none(context_tokens: int, prompt_tokens: int, system_tokens: int) -> None:
    assert plan_chat_window(WindowOptions(), context_tokens, prompt_tokens, system_tokens) is None


def test_a_chat_gets_no_other_window_than_it_asks_for() -> None:
    with pytest.raises(ApiError, match="at least 256 tokens"):
        plan_chat_window(WindowOptions(context_window=255), 1024, 100, 30)
    with pytest.raises(ApiError, match="n_discard"):
        plan_chat_window(WindowOptions(n_discard=1000), 1024, 100, 30)
