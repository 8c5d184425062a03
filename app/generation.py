"""From a validated request to what the engine is asked for, and from its token deltas to text.

The only thing below that it uses is `generate`, an async generator function: it knows neither Ray nor HTTP,
and a test gives it a fake worker.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from app import errors
from app.answer_types import FinishReason as Finish
from app.chat import ChatModel
from app.context_window import OnOverflow, WindowWishes, plan_window, shifts
from app.detokenizer import StopStrings
from app.engine.types import ContextWindow, EngineStoppedError, GenerateRequest, SamplingParams, TokenDelta
from app.functions import Functions, functions_of, grammar_of
from app.logprobs import CompletionLogprobs, chat_entries
from app.openai_types import MAX_TOKENS, ChatCompletionRequest, CompletionRequest
from app.tool_calls import CallParser, ForcedCall, ToolCallDelta

Generate = Callable[[GenerateRequest], AsyncGenerator[TokenDelta, None]]
"""Streams a request's deltas, the last with a finish reason; closing it aborts it. Raises EngineError."""

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens` in completions; in chat it is the service's."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service allows one request."""

    default_max_tokens: int
    """Output of a chat request that names no limit; less where the context is full before."""
    max_choices: int
    """The largest `n`, and the most sequences of a request."""
    on_overflow: OnOverflow = "refuse"
    """What becomes of a request that does not say, where the context is full."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the engine. Choice i is requests[i]; choices of one prompt are neighbours."""

    request_id: str
    requests: tuple[GenerateRequest, ...]
    prompt_tokens: int
    """Each prompt counted once, however many choices it has."""
    stops: tuple[str, ...]
    choices: int
    """Of each prompt."""
    starts_text: bool
    """Whether outputs are texts of their own (chat), or go on where their prompt ends."""
    scores: int | None = None
    """Likely tokens to show beside each; None: no `logprobs`."""
    echoes: tuple[str, ...] = ()
    """Each prompt's text, where outputs begin with it."""
    answers: int | None = None
    """Of each prompt's choices so many, the likeliest, are the answer; None: all."""
    functions: Functions | None = None


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What came of one choice since the last delta; the last has a finish reason."""

    index: int
    text: str
    tokens: int
    finish_reason: Finish | None
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; told once."""
    logprobs: Mapping[str, list[Any]] | None = None
    """OpenAI's lists, as far as these tokens go."""
    logprob: float = 0.0
    """The tokens' log-probability, all together."""
    calls: tuple[ToolCallDelta, ...] = ()


def of_tenant(job: Job, tenant: bytes) -> Job:
    """The same job as asked by an authenticated caller, who alone may find its pages again."""
    return replace(job, requests=tuple(replace(request, tenant=tenant) for request in job.requests))


def plan_chat(model: ChatModel, request: ChatCompletionRequest, limits: Limits, request_id: str) -> Job:
    """Renders and tokenizes; may take long for a long conversation. Raises ApiError (400)."""
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise errors.invalid("'max_tokens' and 'max_completion_tokens' contradict each other.", "max_completion_tokens")
    limit, limit_field = request.output_limit
    if request.top_logprobs is not None and not request.logprobs:
        raise errors.invalid("'top_logprobs' is allowed only with 'logprobs': true.", "top_logprobs", "invalid_value")
    functions = functions_of(request)
    grammar = grammar_of(request, functions)
    tools = (request.tools or ()) if functions is not None else ()
    wishes = _window_wishes(request)
    if shifts(wishes, limits.on_overflow):
        whole = model.chat_prompt(request.messages, tools, bounded=False)
        system_tokens = model.system_tokens(request.messages, tools)
        prompt, window = plan_window(wishes, model.context_tokens, whole, system_tokens, "messages")
        sequence = _Sequence(prompt, _endless_tokens(prompt, limit, limits.default_max_tokens), window)
    else:
        prompt = model.chat_prompt(request.messages, tools)
        output = _output_tokens(model, prompt, limit, limit_field, limits.default_max_tokens, "messages")
        sequence = _Sequence(prompt, output)
    return _job(model, request, limits, request_id, [sequence], starts_text=True, grammar=grammar, functions=functions)


def plan_completion(model: ChatModel, request: CompletionRequest, limits: Limits, request_id: str) -> Job:
    """Tokenizes the prompts that are text; may take long. Raises ApiError (400)."""
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise errors.invalid("'best_of' is less than 'n'.", "best_of", "invalid_value")
    if request.best_of not in (None, request.n or 1) and request.stream:
        raise errors.invalid("'best_of' does not go with 'stream'.", "best_of", "invalid_value")
    wishes = _window_wishes(request)
    endless = shifts(wishes, limits.on_overflow)
    if endless and request.echo:
        raise errors.invalid("'echo' does not go with a context that shifts.", "echo", "invalid_value")
    sequences = []
    for i, prompt in enumerate(request.prompts):
        token_ids: Sequence[int]
        if isinstance(prompt, str):
            token_ids = model.raw_prompt(prompt, bounded=not endless)
        else:
            token_ids = _in_vocabulary(model, prompt, "prompt")
        if not token_ids:
            raise errors.invalid(f"'prompt': prompt {i} is empty, and this model has no token to start from.", "prompt")
        if endless:
            token_ids, window = plan_window(wishes, model.context_tokens, token_ids, 0, "prompt")
            output = _endless_tokens(token_ids, request.max_tokens, COMPLETION_MAX_TOKENS)
            sequences.append(_Sequence(token_ids, output, window))
        else:
            output = _output_tokens(model, token_ids, request.max_tokens, "max_tokens", COMPLETION_MAX_TOKENS, "prompt")
            sequences.append(_Sequence(token_ids, output))
    echoes: tuple[str, ...] = ()
    if request.echo:
        echoes = tuple(
            prompt if isinstance(prompt, str) else model.tokens.join(prompt).decode("utf-8", "replace")
            for prompt in request.prompts
        )
    return _job(model, request, limits, request_id, sequences, starts_text=False, echoes=echoes)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One prompt and what may follow it."""

    prompt: Sequence[int]
    output_tokens: int
    window: ContextWindow | None = None


def _window_wishes(request: ChatCompletionRequest | CompletionRequest) -> WindowWishes:
    return WindowWishes(request.on_overflow, request.context_window, request.n_keep, request.n_discard)


def _endless_tokens(prompt: Sequence[int], limit: int | None, default: int) -> int:
    """The output's limit where the context is none; positions are counted in 32 bits."""
    return min(default if limit is None else limit, MAX_TOKENS - len(prompt))


def _output_tokens(
    model: ChatModel,
    prompt: Sequence[int],
    limit: int | None,
    limit_field: str,
    default: int,
    prompt_field: str,
) -> int:
    room = model.context_tokens - len(prompt)
    if room < min(1, 1 if limit is None else limit):
        raise errors.context_length_exceeded(len(prompt), limit or 1, model.context_tokens, prompt_field)
    if limit is None:
        return min(default, room)
    if limit > room:
        raise errors.context_length_exceeded(len(prompt), limit, model.context_tokens, limit_field)
    return limit


def _job(
    model: ChatModel,
    request: ChatCompletionRequest | CompletionRequest,
    limits: Limits,
    request_id: str,
    sequences: Sequence[_Sequence],
    *,
    starts_text: bool,
    grammar: str | None = None,
    functions: Functions | None = None,
    echoes: tuple[str, ...] = (),
) -> Job:
    answers = request.n or 1
    choices = max(answers, request.best_of or 0) if isinstance(request, CompletionRequest) else answers
    if choices > limits.max_choices:
        field = "n" if choices == answers else "best_of"
        raise errors.invalid(f"'{field}': at most {limits.max_choices} choices are allowed.", field, "invalid_value")
    if choices * len(sequences) > limits.max_choices:
        message = f"{len(sequences)} prompts with n={choices} are more than the {limits.max_choices} allowed."
        raise errors.invalid(f"'prompt': {message}", "prompt", "invalid_value")
    stops = frozenset(_in_vocabulary(model, request.stop_token_ids or (), "stop_token_ids"))
    if not request.ignore_eos:
        stops |= model.eos_token_ids
    least = request.min_tokens or 0
    if any(least > sequence.output_tokens for sequence in sequences):
        raise errors.invalid("'min_tokens' is more than may be generated.", "min_tokens", "invalid_value")
    scores = request.scores if choices == answers else request.scores or 0
    requests = tuple(
        GenerateRequest(
            request_id=f"{request_id}-{prompt * choices + choice}",
            prompt_token_ids=tuple(sequence.prompt),
            max_new_tokens=sequence.output_tokens,
            sampling=replace(
                _sampling(model, request, choice),
                logprobs=scores,
                min_new_tokens=least,
                end_token_ids=stops if least else frozenset(),
            ),
            stop_token_ids=stops,
            prompt_logprobs=request.scores if echoes else None,
            grammar=grammar,
            window=sequence.window,
        )
        for prompt, sequence in enumerate(sequences)
        for choice in range(choices)
    )
    prompt_tokens = sum(len(sequence.prompt) for sequence in sequences)
    return Job(
        request_id,
        requests,
        prompt_tokens,
        request.stops,
        choices,
        starts_text,
        scores=request.scores,
        echoes=echoes,
        answers=None if choices == answers else answers,
        functions=functions,
    )


def _sampling(model: ChatModel, request: ChatCompletionRequest | CompletionRequest, choice: int) -> SamplingParams:
    def given(value: float | None, default: float) -> float:
        return default if value is None else float(value)

    biases = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    _in_vocabulary(model, biases, "logit_bias")
    return SamplingParams(
        temperature=given(request.temperature, 1.0),
        top_k=max(request.top_k or 0, 0),
        top_p=given(request.top_p, 1.0),
        min_p=given(request.min_p, 0.0),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        logit_bias=biases,
        # The choices of one seed differ, and the same seed gives the same choices again.
        seed=None if request.seed is None else (request.seed + choice) % 2**64,
    )


def _in_vocabulary(model: ChatModel, token_ids: Iterable[int], field: str) -> list[int]:
    token_ids = list(token_ids)
    model.check_vocabulary(token_ids, field)
    return token_ids


async def stream(job: Job, model: ChatModel, generate: Generate) -> AsyncGenerator[list[ChoiceDelta], None]:
    """Runs all choices at once and yields what has come since the last time, one delta per choice at most.

    A slow reader gets fewer, bigger deltas. Closing it, or an error in one choice, closes every choice's
    generator.
    """
    inbox = _Inbox()
    runs = [asyncio.create_task(_run_choice(index, job, model, generate, inbox)) for index in range(len(job.requests))]
    try:
        finished = 0
        while finished < len(runs):
            deltas = await inbox.take()
            finished += sum(delta.finish_reason is not None for delta in deltas)
            yield deltas
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


class _Inbox:
    """Where the choices leave their deltas; those of one choice become one until they are taken."""

    def __init__(self) -> None:
        self._deltas: dict[int, ChoiceDelta] = {}
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, delta: ChoiceDelta) -> None:
        earlier = self._deltas.get(delta.index)
        if earlier is not None:
            delta = ChoiceDelta(
                delta.index,
                earlier.text + delta.text,
                earlier.tokens + delta.tokens,
                delta.finish_reason,
                earlier.cached_tokens + delta.cached_tokens,
                _joined(earlier.logprobs, delta.logprobs),
                earlier.logprob + delta.logprob,
                earlier.calls + delta.calls,
            )
        self._deltas[delta.index] = delta
        self._news.set()

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._news.set()

    async def take(self) -> list[ChoiceDelta]:
        """Everything there is, as soon as there is something; an error comes after what came before it."""
        await self._news.wait()
        deltas, self._deltas = list(self._deltas.values()), {}
        if not deltas and self._error is not None:
            raise self._error
        if self._error is None:
            self._news.clear()
        return deltas


async def _run_choice(index: int, job: Job, model: ChatModel, generate: Generate, inbox: _Inbox) -> None:
    """Moves one choice's text to the inbox until it ends, by itself or by a stop string."""
    text = _ChoiceText(model, job)
    scored = _Scores(model, job, index)
    calls = _call_parser(job)
    echo = job.echoes[index // job.choices] if job.echoes else ""
    try:
        async with aclosing(generate(job.requests[index])) as deltas:
            async for delta in deltas:
                new_text, tokens, stopped = text.feed(delta)
                finish_reason: Finish | None = "stop" if stopped else delta.finish_reason
                found: list[ToolCallDelta] = []
                if calls is not None:
                    new_text, found = calls.feed(new_text)
                    if finish_reason is not None:
                        rest, more = calls.finish()
                        new_text, found = new_text + rest, found + more
                        finish_reason = "tool_calls" if calls.calls and finish_reason == "stop" else finish_reason
                inbox.put(
                    ChoiceDelta(
                        index,
                        echo + new_text,
                        tokens,
                        finish_reason,
                        delta.cached_tokens,
                        scored.lists(delta, tokens),
                        0.0 if delta.scores is None else float(delta.scores.logprobs[:tokens].sum()),
                        tuple(found),
                    )
                )
                echo = ""
                if finish_reason is not None:
                    return
        raise RuntimeError("the worker ended a stream without a finish reason")
    except asyncio.CancelledError:
        # By the reader, who is gone; or from below, where nobody else would tell the reader.
        inbox.fail(EngineStoppedError("The worker gave this request up. Try again."))
        raise
    except Exception as error:
        inbox.fail(error)


def _joined(
    first: Mapping[str, list[Any]] | None, second: Mapping[str, list[Any]] | None
) -> Mapping[str, list[Any]] | None:
    if first is None or second is None:
        return first if second is None else second
    return {name: entries + second[name] for name, entries in first.items()}


def _call_parser(job: Job) -> CallParser | ForcedCall | None:
    functions = job.functions
    if functions is None:
        return None
    if functions.mode == "named":
        return ForcedCall(functions.names[0])
    return CallParser(functions.names, only_calls=functions.mode == "list")


class _Scores:
    """One choice's scores as OpenAI's lists."""

    def __init__(self, model: ChatModel, job: Job, index: int) -> None:
        self._tokens = model.tokens
        self._prompt = job.requests[index].prompt_token_ids if job.echoes else ()
        self._wanted = job.scores is not None
        self._lists = None if job.starts_text else CompletionLogprobs(model.tokens, job.scores or 0)

    def lists(self, delta: TokenDelta, tokens: int) -> Mapping[str, list[Any]] | None:
        """Of the delta's first tokens; with the first delta those of the prompt, if it is echoed."""
        if not self._wanted:
            return None
        if self._lists is None:
            if delta.scores is None:
                return None
            return {"content": chat_entries(self._tokens, delta.token_ids, delta.scores)[:tokens]}
        if delta.prompt is not None and delta.prompt.scores is not None:
            self._lists.add_unscored(self._prompt[0])
            self._lists.add(self._prompt[1:], delta.prompt.scores)
        if delta.scores is not None:
            self._lists.add(delta.token_ids[:tokens], delta.scores)
        return self._lists.take()


class _ChoiceText:
    """One choice's way from tokens to text, stop strings cut off."""

    def __init__(self, model: ChatModel, job: Job) -> None:
        self._detokenizer = model.detokenizer(starts_text=job.starts_text, shows_calls=job.functions is not None)
        self._stops = StopStrings(job.stops)
        self._has_stops = bool(job.stops)

    def feed(self, delta: TokenDelta) -> tuple[str, int, bool]:
        """The new text, its tokens, and whether a stop string ended it; tokens after that one don't count."""
        finished = delta.finish_reason is not None
        if not self._has_stops:
            text = self._detokenizer.feed(delta.token_ids)
            return text + self._detokenizer.finish() if finished else text, len(delta.token_ids), False
        shown = []
        for count, token in enumerate(delta.token_ids, start=1):
            text, stopped = self._stops.feed(self._detokenizer.feed((token,)))
            shown.append(text)
            if stopped:
                return "".join(shown), count, True
        stopped = False
        if finished:
            text, stopped = self._stops.feed(self._detokenizer.finish())
            shown.append(text if stopped else text + self._stops.finish())
        return "".join(shown), len(delta.token_ids), stopped
