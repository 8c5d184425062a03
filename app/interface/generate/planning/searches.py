"""Selects the search of a request, by the fields of vLLM and transformers.

A field that would have no effect is refused by name, never ignored. It knows neither model nor prompt.
"""

from app.interface.functions.answer_forms import answer_form
from app.interface.request import errors
from app.interface.wire.chat import ChatCompletionRequest
from app.interface.wire.completions import CompletionRequest
from app.messages.requests import BeamParams, ContrastiveParams

_Request = ChatCompletionRequest | CompletionRequest


def search_of(request: _Request, max_beams: int) -> BeamParams | ContrastiveParams | None:
    """Returns the search; None: sampling. max_beams limits contrastive candidates too. Raises ApiError (400)."""
    beams = _width(request)
    if beams is None:
        for field, off in (
            ("length_penalty", 1),
            ("early_stopping", False),
            ("num_beam_groups", 1),
            ("diversity_penalty", 0),
        ):
            if getattr(request, field) not in (None, off):
                raise _invalid(field, "is allowed only with beam search ('num_beams')")
        if not request.penalty_alpha:
            return None
        search: BeamParams | ContrastiveParams = _contrastive(request, max_beams)
    else:
        search = _beams(request, beams, max_beams)
    _refuse_what_has_no_effect(request)
    return search


def _width(request: _Request) -> int | None:
    """Returns the number of beams; None: no beam search."""
    best_of = request.best_of if isinstance(request, CompletionRequest) else None
    if request.use_beam_search is False and (request.num_beams or 1) > 1:
        raise _invalid("num_beams", "contradicts 'use_beam_search': false")
    if not request.use_beam_search and (request.num_beams or 1) == 1:
        return None
    if request.num_beams is not None and best_of not in (None, request.num_beams):
        raise _invalid("best_of", "is the number of beams, and contradicts 'num_beams'")
    return request.num_beams or best_of or request.n or 1


def _beams(request: _Request, beams: int, max_beams: int) -> BeamParams:
    if beams > max_beams:
        raise _invalid("num_beams", f"at most {max_beams} are allowed, not {beams}")
    if request.penalty_alpha:
        raise _invalid("penalty_alpha", "does not go with beam search")
    if request.top_k not in (None, 0, -1):
        raise _invalid("top_k", "does not go with beam search")
    answers, groups = request.n or 1, request.num_beam_groups or 1
    if answers > beams:
        raise _invalid("n", f"is more than the {beams} beams")
    if beams % groups:
        raise _invalid("num_beam_groups", f"does not divide the {beams} beams")
    if request.diversity_penalty and groups == 1:
        raise _invalid("diversity_penalty", "is allowed only with 'num_beam_groups' above 1")
    return BeamParams(
        beams,
        answers,
        1.0 if request.length_penalty is None else request.length_penalty,
        request.early_stopping or False,
        groups,
        request.diversity_penalty or 0.0,
    )


def _contrastive(request: _Request, max_beams: int) -> ContrastiveParams:
    if not 1 <= (request.top_k or 0) <= max_beams:
        raise _invalid("top_k", f"has to be 1 to {max_beams} with 'penalty_alpha'")
    if (request.n or 1) > 1:
        raise _invalid("n", "does not go with 'penalty_alpha': there is one answer")
    if isinstance(request, CompletionRequest) and (request.best_of or 1) > 1:
        raise _invalid("best_of", "does not go with 'penalty_alpha': there is one answer")
    assert request.top_k is not None
    assert request.penalty_alpha is not None
    return ContrastiveParams(request.top_k, request.penalty_alpha)


def _refuse_what_has_no_effect(request: _Request) -> None:
    """Refuses fields that a search does not use. Many clients always send a temperature, so 0 and 1 are accepted."""
    for field, harmless in (
        ("temperature", (None, 0, 1)),
        ("top_p", (None, 1)),
        ("min_p", (None, 0)),
        ("do_sample", (None, False)),
    ):
        if getattr(request, field) not in harmless:
            raise _invalid(field, "does not go with a search, which draws nothing")
    if request.scores is not None:
        raise _invalid("logprobs", "does not go with a search")
    if request.on_overflow == "shift":
        raise _invalid("on_overflow", "a search can't shift its context")
    if request.max_tokens == 0:
        raise _invalid("max_tokens", "has to be at least 1 for a search")
    if (form := answer_form(request)) is not None:
        raise _invalid(form.field, "does not go with a search")
    if isinstance(request, ChatCompletionRequest):
        if request.tool_choice not in (None, "auto", "none"):
            raise _invalid("tool_choice", "a call can't be forced in a search")
        if request.tool_choice != "none" and any(tool.function.strict for tool in request.tools or ()):
            raise _invalid("tools", "functions can't be strict in a search")


def _invalid(field: str, why: str) -> errors.ApiError:
    return errors.invalid(f"'{field}': {why}.", field, "invalid_value")
