"""What planning makes of a request: its work for the engine, and what its answer is made from."""

from dataclasses import dataclass

from app.interface.functions.requested import Functions, Grammar
from app.interface.thinking.marks import Thought
from app.messages.requests import GenerateRequest


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the engine. Choice i is requests[i]; choices of one prompt are neighbours.

    A beam search is one request per prompt, which gives all of the prompt's choices.
    """

    request_id: str
    requests: tuple[GenerateRequest, ...]
    prompt_tokens: int
    """Each prompt counted once, however many choices it has."""
    stops: tuple[str, ...]
    choices: int
    """Choices of each prompt."""
    starts_text: bool
    """True: an output is a text of its own (chat). False: it continues its prompt."""
    scores: int | None = None
    """How many likely tokens to report beside each; None: no `logprobs`."""
    echoes: tuple[str, ...] = ()
    """Each prompt's text, where outputs begin with it."""
    answers: int | None = None
    """How many of each prompt's choices, the likeliest, are the answer; None: all."""
    functions: Functions | None = None
    grammar: Grammar | None = None
    beams: bool = False
    """Whether each request is a beam search."""
    thought: Thought | None = None
    """How outputs may begin with a thought; None: nothing in them is one."""
    shared_tokens: int = 0
    """How many of a prompt's first tokens are system prompt and tools, whatever is said after them."""

    @property
    def outputs(self) -> int:
        """Choices of all prompts."""
        return len(self.requests) * (self.choices if self.beams else 1)

    def request_of(self, output: int) -> GenerateRequest:
        """The request that a choice belongs to."""
        return self.requests[output // self.choices if self.beams else output]
