"""The planning that chat and completions share: from options and prompts to a job.

Planning has three stages: the options, from the request's fields alone; the prompts, which are rendered and tokenized
once; the limits, which need both. `app.interface.generate.generation` then runs the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.interface.functions.requested import Functions, Grammar
from app.interface.generate.planning.context_window import WindowOptions, shifts
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import BoundedPrompt, Limits
from app.interface.generate.planning.sampling import sampling_params
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.thinking.requested import TemplateOptions
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest
from app.messages.thoughts import ThoughtBudget

Search = BeamParams | ContrastiveParams


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The options of a request that do not depend on its prompt."""

    search: Search | None
    """None: tokens are sampled."""
    window: WindowOptions | None
    """How the context shifts when it is full; None: it does not."""
    leaves_out_turns: bool = False
    """Whether a chat that is too long loses its oldest turns; if not, it is refused."""
    functions: Functions | None = None
    grammar: Grammar | None = None
    thinking: TemplateOptions = field(default_factory=TemplateOptions)
    """How much the model should think, of a chat."""
    thought: ThoughtBudget | None = None
    """The budget of its thought for the engine."""


def window_options(
    model: ChatModel, request: ChatCompletionRequest | CompletionRequest, search: Search | None
) -> WindowOptions | None:
    """Returns the options if the context shifts, else None. Raises ApiError (400)."""
    options = WindowOptions(request.on_overflow, request.context_window, request.n_keep, request.n_discard)
    return options if search is None and shifts(options, model.on_overflow) else None


def make_job(
    model: ChatModel,
    request: ChatCompletionRequest | CompletionRequest,
    limits: Limits,
    caller: Caller,
    request_id: str,
    *,
    options: GenerationOptions,
    prompts: Sequence[BoundedPrompt],
    starts_text: bool,
    echoes: tuple[str, ...] = (),
) -> Job:
    """Builds one engine request per sequence. Raises ApiError (400) if a limit is exceeded."""
    answers = choices = request.n or 1
    if options.search is None and isinstance(request, CompletionRequest):
        choices = max(answers, request.best_of or 0)
    limits.check_choices(len(prompts), choices, "n" if choices == answers else "best_of")
    stop_token_ids = _stop_token_ids(model, request)
    if any((request.min_tokens or 0) > prompt.output_tokens for prompt in prompts):
        raise errors.invalid("'min_tokens' is more than may be generated.", "min_tokens", "invalid_value")
    # Choices are ranked by their scores, whether the client asks for scores or not.
    scores = request.scores if choices == answers else request.scores or 0
    beams = isinstance(options.search, BeamParams)
    requests_each = 1 if beams else choices
    requests = tuple(
        GenerateRequest(
            request_id=f"{request_id}-{number * requests_each + choice}",
            prompt_token_ids=tuple(prompt.token_ids),
            max_new_tokens=prompt.output_tokens,
            sampling=sampling_params(model, request, choice, scores=scores, end_token_ids=stop_token_ids),
            stop_token_ids=stop_token_ids,
            tenant=caller.tenant,
            client=caller.client,
            priority=caller.priority,
            model_identity=model.identity,
            prompt_logprobs=request.scores if echoes else None,
            grammar=options.grammar.schema if options.grammar is not None else None,
            window=prompt.window,
            thought=options.thought,
            search=options.search,
            reports_progress=request.return_progress or False,
            uses_cache=request.use_cache is not False,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(requests_each)
    )
    return Job(
        request_id,
        requests,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        stops=request.stops,
        choices=choices,
        starts_text=starts_text,
        scores=request.scores,
        echoes=echoes,
        shows_tokens=request.return_token_ids or False,
        answers=None if choices == answers else answers,
        functions=options.functions,
        beams=beams,
        grammar=options.grammar,
        wanted_tokens=prompts[0].wanted_tokens if len(prompts) == 1 else None,
    )


def _stop_token_ids(model: ChatModel, request: ChatCompletionRequest | CompletionRequest) -> frozenset[int]:
    stop_token_ids = frozenset(request.stop_token_ids or ())
    model.check_vocabulary(stop_token_ids, "stop_token_ids")
    return stop_token_ids if request.ignore_eos else stop_token_ids | model.eos_token_ids
