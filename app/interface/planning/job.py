"""What planning makes: a request's work for the engine, and the service's limits on it."""

from dataclasses import dataclass, replace

from app.interface.functions.wanted import Functions, Grammar
from app.messages.requests import GenerateRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service allows one request."""

    default_max_tokens: int
    """Output of a chat request that names no limit; less where the context is full before."""
    max_choices: int
    """The largest `n`, and the most sequences of a request."""
    max_beams: int = 8
    """The largest `num_beams`, and the largest `top_k` with `penalty_alpha`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the engine. Choice i is requests[i]; choices of one prompt are neighbours.

    Of a beam search there is one request per prompt, which gives all of the prompt's choices.
    """

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
    grammar: Grammar | None = None
    beams: bool = False
    """Whether each request is a beam search."""

    @property
    def outputs(self) -> int:
        """Choices of all prompts."""
        return len(self.requests) * (self.choices if self.beams else 1)

    def request_of(self, output: int) -> GenerateRequest:
        """Which one a choice is of."""
        return self.requests[output // self.choices if self.beams else output]


def of_tenant(job: Job, tenant: bytes) -> Job:
    """The same job as asked by an authenticated caller, who alone may find its pages again."""
    return replace(job, requests=tuple(replace(request, tenant=tenant) for request in job.requests))
