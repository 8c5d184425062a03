"""A completion as one answer or as chunks. Knows nothing of HTTP, tokens or the engine."""

from collections.abc import Sequence

from app.interface.generate.answers.answer import AnswerHead
from app.interface.generate.answers.choice import ChoiceDelta
from app.interface.generate.answers.chunks import ChunkEvents, ChunkShape
from app.interface.generate.answers.collected import CollectedChoices
from app.interface.generate.planning.job import Job
from app.interface.wire.completions import Completion, CompletionChoice, CompletionRequest

COMPLETION_CHUNKS = ChunkShape(object="text_completion", opening=b"", text=b'"text":%b', empty=b'"text":""')


class CompletionBody:
    """Collects a completion."""

    def __init__(self, _: CompletionRequest, head: AnswerHead, job: Job) -> None:
        self._head = head
        self._job = job
        self._choices = CollectedChoices(job)

    def add(self, deltas: Sequence[ChoiceDelta]) -> None:
        self._choices.add(deltas)

    def body(self) -> bytes:
        """Returns a `Completion` as JSON."""
        completion = Completion(
            id=self._head.response_id,
            created=self._head.created,
            model=self._head.model,
            choices=[
                CompletionChoice(
                    index=i,
                    text=choice.text,
                    logprobs=choice.logprobs or None,
                    finish_reason=choice.finish_reason,
                    prompt_token_ids=list(self._job.prompt_of(i)) if self._job.shows_tokens else None,
                    token_ids=choice.token_ids if self._job.shows_tokens else None,
                )
                for i, choice in enumerate(self._choices.best())
            ],
            usage=self._choices.usage(),
        )
        return completion.model_dump_json().encode()


def completion_events(request: CompletionRequest, head: AnswerHead, job: Job) -> ChunkEvents:
    """Writes a completion as chunks."""
    return ChunkEvents(COMPLETION_CHUNKS, head, job, usage=request.include_usage, each_usage=request.usage_in_chunks)
