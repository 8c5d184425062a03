"""The result of planning: the engine requests, and what is needed to build the answer."""

from dataclasses import dataclass

from app.interface.functions.requested import Functions, Grammar
from app.interface.thinking.marks import Thought
from app.messages.requests import GenerateRequest


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the model does not see of a conversation."""

    turns: int
    limit_tokens: int
    """See `planning/kept_turns`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A planned request. Choice i is requests[i]; choices of one prompt are adjacent.

    A beam search is one request per prompt, which returns all choices of the prompt.
    """

    request_id: str
    requests: tuple[GenerateRequest, ...]
    prompt_tokens: int
    """Each prompt counts once, however many choices it has."""
    stops: tuple[str, ...]
    choices: int
    """The number of choices per prompt."""
    starts_text: bool
    """True: an output is a text of its own (chat). False: it continues its prompt."""
    scores: int | None = None
    """The number of top tokens to report at each position; None: no `logprobs`."""
    echoes: tuple[str, ...] = ()
    """The prompts' texts, if outputs begin with them."""
    begun: str = ""
    """What the texts of outputs begin with, where the client has begun an answer and wants it in its text."""
    shows_tokens: bool = False
    """Whether the client wants to know the tokens."""
    answers: int | None = None
    """How many choices per prompt, the most likely ones, are returned; None: all."""
    functions: Functions | None = None
    grammar: Grammar | None = None
    beams: bool = False
    """Whether each request is a beam search."""
    thought: Thought | None = None
    """How outputs may begin with a thought; None: they do not."""
    wanted_tokens: int | None = None
    """The most output tokens if the context were longer; None: unknown, as the prompts are not of one length."""
    left_out: LeftOut | None = None
    """What the model does not see of a conversation; None: nothing was to be left out."""
    shared_tokens: int = 0
    """The number of a prompt's first tokens that are system prompt, tools and files."""

    @property
    def outputs(self) -> int:
        """The number of choices of all prompts."""
        return len(self.requests) * (self.choices if self.beams else 1)

    def prompt_of(self, answer: int) -> tuple[int, ...]:
        """Returns the prompt of one of the choices that are returned."""
        return self.request_of(answer // (self.answers or self.choices) * self.choices).prompt_token_ids

    def request_of(self, output: int) -> GenerateRequest:
        """Returns the request of a choice."""
        return self.requests[output // self.choices if self.beams else output]
