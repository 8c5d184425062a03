"""A chat completion as one answer or as chunks. Knows nothing of HTTP, tokens or the engine."""

from collections.abc import Sequence
from typing import Any

from app.interface.functions.custom_input import input_of
from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.chunks import ChunkEvents, ChunkShape
from app.interface.generate.answers.collected import CollectedCall, CollectedChoice, CollectedChoices
from app.interface.generate.planning.job import Job
from app.interface.wire.chat import AssistantMessage, ChatChoice, ChatCompletion, ChatCompletionRequest

CHAT_CHUNKS = ChunkShape(
    object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":""}',
    text=b'"delta":{"content":%b}',
    empty=b'"delta":{}',
)


class ChatBody:
    """Collects a chat completion."""

    def __init__(self, request: ChatCompletionRequest, head: AnswerHead, job: Job) -> None:
        self._head = head
        self._custom = request.custom_tools
        self._job = job
        self._choices = CollectedChoices(job)

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._choices.add(deltas)

    def body(self) -> bytes:
        """Returns a `ChatCompletion` as JSON."""
        completion = ChatCompletion(
            id=self._head.response_id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(i, choice) for i, choice in enumerate(self._choices.best())],
            usage=self._choices.usage(),
            context=self._choices.context(),
            prompt_token_ids=list(self._job.prompt_of(0)) if self._job.shows_tokens else None,
        )
        return completion.model_dump_json().encode()

    def _choice(self, index: int, choice: CollectedChoice) -> ChatChoice:
        calls = [_call(call, is_custom=call.name in self._custom) for call in choice.calls]
        content = None if calls and not choice.text.strip() else choice.text
        return ChatChoice(
            index=index,
            message=AssistantMessage(
                content=content,
                reasoning_content=choice.thought or None,
                reasoning_cut=choice.cut,
                tool_calls=calls or None,
            ),
            logprobs={**choice.logprobs, "refusal": None} if choice.logprobs else None,
            finish_reason=choice.finish_reason,
            token_ids=choice.token_ids if self._job.shows_tokens else None,
        )


def chat_events(request: ChatCompletionRequest, head: AnswerHead, job: Job) -> ChunkEvents:
    """Writes a chat completion as chunks."""
    return ChunkEvents(
        CHAT_CHUNKS,
        head,
        job,
        usage=request.include_usage,
        each_usage=request.usage_in_chunks,
        custom=request.custom_tools,
    )


def _call(call: CollectedCall, *, is_custom: bool) -> dict[str, Any]:
    if is_custom:
        return {"id": call.call_id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
