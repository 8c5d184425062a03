"""Streams answers from `/v1/chat/completions` and `/v1/responses`. Knows nothing of how they are shown.

All functions raise OpenAIError, as the library's own calls do; an answer that breaks off raises AnswerError.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import httpx
from openai import APIConnectionError, APIError, APIStatusError, Omit, OpenAIError, Stream, omit
from openai.types.chat import ChatCompletionChunk

from app.client import attached
from app.client.turns import Asking, Context, Ended, Message, Pieces, Sources, Thought, Usage

Event = TypeVar("Event")
Value = TypeVar("Value")
_ENDLESS = {"on_overflow": "shift"}
"""A chat that fills the context goes on without its oldest turns."""
_BROKEN_OFF = "The connection broke off before the answer's end."


class AnswerError(OpenAIError):
    """An answer that had begun has failed."""

    def __init__(self, message: str, code: str | None, request_id: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


def completed(asking: Asking, said: Sequence[Message], *, cache_key: str | None = None) -> Pieces:
    """Streams the next answer; the service keeps nothing. cache_key: the conversation whose saved pages are used."""
    knobs = asking.knobs
    system = [{"role": "system", "content": knobs.system}] if knobs.system else []
    messages: Any = [*system, *({"role": one.role, "content": _content(one)} for one in said)]
    with asking.client.chat.completions.create(
        model=asking.model,
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
        temperature=_or_omit(knobs.temperature),
        top_p=_or_omit(knobs.top_p),
        max_tokens=_or_omit(knobs.max_tokens),
        seed=_or_omit(knobs.seed),
        prompt_cache_key=_or_omit(cache_key),
        extra_body={**_ENDLESS, **asking.thinking},
    ) as chunks:
        finish_reason, usage, cut, context = None, None, None, None
        for chunk in _read(chunks):
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                remembered_tokens = (details.cached_tokens if details else None) or 0
                usage = Usage(chunk.usage.prompt_tokens, remembered_tokens, chunk.usage.completion_tokens)
                context = (chunk.model_extra or {}).get("context")
            if not chunk.choices:
                continue
            yield from _pieces_of(chunk)
            finish_reason = chunk.choices[0].finish_reason or finish_reason
            cut = (chunk.choices[0].delta.model_extra or {}).get("reasoning_cut", cut)
        if finish_reason is None:
            raise AnswerError(_BROKEN_OFF, None, _request_id(chunks))
        yield _ended(usage, context, is_cut=finish_reason == "length", was_thinking=cut == "length")


def responded(asking: Asking, conversation_id: str, question: str, parent: str | None = None) -> Pieces:
    """Streams the answer to a question in a stored conversation, up to where it is closed.

    parent: the item that the question follows, or "root"; None: the newest.
    """
    knobs = asking.knobs
    extra: dict[str, Any] = {**_ENDLESS, **asking.thinking, **({} if knobs.seed is None else {"seed": knobs.seed})}
    if knobs.collection is not None:
        extra["tools"] = [{"type": "file_search", "vector_store_ids": [knobs.collection]}]
    if parent is not None:
        extra["conversation"] = {"id": conversation_id, "parent": parent}
    with asking.client.responses.create(
        model=asking.model,
        conversation=conversation_id,
        input=_input(asking, question),
        instructions=knobs.system or None,
        temperature=_or_omit(knobs.temperature),
        top_p=_or_omit(knobs.top_p),
        max_output_tokens=_or_omit(knobs.max_tokens),
        extra_body=extra,
        stream=True,
    ) as events:
        end: Ended | None = None
        for event in _read(events):
            if event.type == "response.output_text.delta":
                yield event.delta
            elif event.type == "response.reasoning_text.delta":
                yield Thought(event.delta)
            elif event.type == "response.failed":
                failed = event.response.error
                message = "The answer has failed." if failed is None else failed.message
                raise AnswerError(message, None if failed is None else failed.code, _request_id(events))
            elif event.type in ("response.completed", "response.incomplete"):
                yield from _sources_of(event.response)
                end = _end_of(event.response)
        if end is None:
            raise AnswerError(_BROKEN_OFF, None, _request_id(events))
        yield end


def _content(message: Message) -> Any:
    return attached.parts(message.files, message.text, is_item=False) if message.files else message.text


def _input(asking: Asking, question: str) -> Any:
    if not asking.files:
        return question
    return [{"role": "user", "content": attached.parts(asking.files, question, is_item=True)}]


def _pieces_of(chunk: ChatCompletionChunk) -> Iterator[Thought | str]:
    delta = chunk.choices[0].delta
    if thought := (delta.model_extra or {}).get("reasoning_content"):
        yield Thought(thought)
    if delta.content:
        yield delta.content


def _sources_of(response: Any) -> Iterator[Sources]:
    """Yields a line for each passage that the answer cites, by its number."""
    cited: dict[int, str] = {}
    for item in response.output:
        for part in (item.content or ()) if item.type == "message" else ():
            for one in getattr(part, "annotations", ()):
                more = one.model_extra or {}
                page = "" if more.get("page") is None else f", page {more['page']}"
                cited[more.get("result", 0) + 1] = f"{one.filename}{page}"
    if cited:
        yield Sources("\n\n" + "\n".join(f"[{number}] {name}" for number, name in sorted(cited.items())))


def _end_of(response: Any) -> Ended:
    details, spent = response.incomplete_details, response.usage
    usage = None
    if spent is not None:
        usage = Usage(spent.input_tokens, spent.input_tokens_details.cached_tokens, spent.output_tokens)
    was_thinking = any(getattr(item, "cut", None) == "max_output_tokens" for item in response.output)
    is_cut = details is not None and details.reason == "max_output_tokens"
    context = (response.model_extra or {}).get("context")
    return _ended(usage, context, is_cut=is_cut, was_thinking=was_thinking)


def _ended(usage: Usage | None, context: dict[str, Any] | None, *, is_cut: bool, was_thinking: bool) -> Ended:
    """context: the field of the service's answer."""
    cut_by: Literal["length", "context"] = "context" if context is not None and context.get("full") else "length"
    sees = None if context is None else Context(context["left_out_turns"], context["limit_tokens"])
    return Ended(cut_by if is_cut else None, usage, sees, was_thinking)


def _read(stream: Stream[Event]) -> Iterator[Event]:
    with _as_answer_error(stream):
        yield from stream


@contextmanager
def _as_answer_error(stream: Stream[Any]) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, APIConnectionError) as error:
        raise AnswerError(_BROKEN_OFF, None, _request_id(stream)) from error
    except APIStatusError:
        raise
    except APIError as error:
        raise AnswerError(error.message, error.code, _request_id(stream)) from error


def _request_id(stream: Stream[Any]) -> str | None:
    return stream.response.headers.get("x-request-id")


def _or_omit(value: Value | None) -> Value | Omit:
    return omit if value is None else value
