"""Validates a request and makes what the engine runs for it: a generation, or a search.

Runs on the caller's thread, so that the engine's thread does not spend time on it. Knows nothing of other requests.
"""

import os
from dataclasses import replace

from app.engine.generation import Deliver, Generation
from app.engine.model_runner import ModelRunner, TokenConstraint
from app.engine.pages.page_names import CACHE_SECRET_BYTES, memory_salt, tenant_salt
from app.engine.scheduling.limits import PageWindow, SchedulerLimits
from app.engine.searches.branches import Search
from app.engine.speculative.drafter import NgramDrafter
from app.engine.speculative.forced_drafter import ForcedDrafter
from app.messages.failures import InvalidRequestError
from app.messages.requests import BeamParams, GenerateRequest, Priority
from app.messages.thoughts import ThoughtWatch


class Intake:
    """Makes generations for one engine. Thread-safe."""

    def __init__(
        self,
        runner: ModelRunner,
        limits: SchedulerLimits,
        *,
        cache_secret: bytes | None,
        fingerprint: bytes | None = None,
        guesses: bool,
        drafts: bool,
    ) -> None:
        """Raises ValueError for a short secret.

        cache_secret: secret for the names of cached pages; None: no pages are cached.
        fingerprint: the page store's, for the names of saved pages; None: no pages are saved.
        guesses: whether drafts are looked up in texts. drafts: whether there are any, of whatever kind.
        """
        if cache_secret is not None and len(cache_secret) < CACHE_SECRET_BYTES:
            raise ValueError(f"cache_secret must have at least {CACHE_SECRET_BYTES} bytes, not {len(cache_secret)}")
        self._runner = runner
        self._limits = limits
        self._cache_secret = cache_secret
        self._fingerprint = fingerprint
        self._guesses = guesses
        self._drafts = drafts

    def make(
        self, request: GenerateRequest, deliver: Deliver, key: object, constraint: TokenConstraint | None
    ) -> tuple[Generation, Search | None]:
        """Returns the request's first generation, and its search if it is one.

        Raises RequestTooLongError, InvalidRequestError.
        """
        request = self._ending(request)
        window = self._check(request)
        salt = self._salt(request)
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(8), "little")
        try:
            if request.search is not None:
                search = Search.of(request, self._runner, deliver, key, salt)
                return search.root, search
            sampler = self._runner.make_sampler(request.prompt_token_ids, sampling, seed)
            if constraint is not None:
                sampler = self._runner.constrained(sampler, constraint)
            thought = None if request.thought is None else ThoughtWatch(request.thought)
            if request.resumed_token_ids:
                sampler.remember(request.resumed_token_ids)
                if thought is not None:
                    for token in request.resumed_token_ids:
                        thought.add(token)
                    if thought.is_writing:  # an engine sends it as a whole
                        raise ValueError("an output can't go on within the written end of a thought")
            prompt_reader = self._runner.make_reader(request)
        except (ValueError, OverflowError, TypeError) as error:
            raise InvalidRequestError(str(error)) from error
        generation = Generation.of(
            request,
            sampler,
            deliver,
            key,
            page_tokens=self._limits.page_tokens,
            salt=salt,
            has_memory=self._fingerprint is not None and request.priority is not Priority.BATCH,
            prompt_reader=prompt_reader,
            constraint=constraint,
            thought=thought,
            window=window,
            seed=seed,
        )
        generation.may_draft = self._drafts and request.may_draft
        if generation.may_draft and self._guesses:
            drafter = NgramDrafter(generation.tokens)
            generation.drafter = drafter if constraint is None else ForcedDrafter(constraint, drafter)
        return generation, None

    def _salt(self, request: GenerateRequest) -> bytes | None:
        """The start of the request's chain of page names; None: its pages are not shared."""
        if self._cache_secret is None or request.needs_whole_prompt or not request.uses_cache:
            return None
        if request.memory is not None and self._fingerprint is not None:
            return memory_salt(request.memory.names_key, self._fingerprint)
        return tenant_salt(self._cache_secret, request.tenant)

    def _ending(self, request: GenerateRequest) -> GenerateRequest:
        """Returns a request whose window is not required with the window that it can have, or with the context's end.

        Without a window its output ends where the context does, or the KV cache. A batch's has none: it could not give
        its pages back.
        """
        wanted = request.window
        if wanted is None or wanted.is_required:
            return request
        window = self._limits.window(len(request.prompt_token_ids), request.max_new_tokens, wanted)
        if window is not None and self._not_shifted_reason() is None and request.priority is not Priority.BATCH:
            return request
        room_tokens = self._limits.longest_tokens - len(request.prompt_token_ids)
        most_tokens = request.max_new_tokens if room_tokens < 1 else min(request.max_new_tokens, room_tokens)
        return replace(request, window=None, max_new_tokens=most_tokens)

    def _not_shifted_reason(self) -> str | None:
        """Returns why contexts of this model can't be shifted; None: they can."""
        if self._limits.state_pages:
            return "this model has recurrent states, which depend on all tokens before: its context can't be shifted"
        if self._limits.groups.windowed:
            return (
                "this model's attention has windows, whose pages are given back: its context can be shifted only where "
                "the service's settings have on_overflow 'shift'"
            )
        if not self._runner.has_relative_positions:
            return "this model's positions are absolute (learned, or by dynamic RoPE): its context can't be shifted"
        return None

    def _check(self, request: GenerateRequest) -> PageWindow | None:
        """Returns the context window if the output needs one. Raises RequestTooLongError, InvalidRequestError."""
        prompt = request.prompt_token_ids
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens")
        if request.max_new_tokens < 0:
            raise InvalidRequestError(f"max_new_tokens must be at least 0, not {request.max_new_tokens}")
        if request.prompt_logprobs is not None and request.pooling is not None:
            raise InvalidRequestError("prompt_logprobs and pooling are not for one request")
        if request.resumed_token_ids:
            _check_resumed(request)
        window = self._limits.window(len(prompt), request.max_new_tokens, request.window)
        if window is not None and request.priority is Priority.BATCH:
            raise InvalidRequestError("on_overflow: a batch's context can't be shifted; only 'refuse' is possible")
        if window is not None and (reason := self._not_shifted_reason()) is not None:
            raise InvalidRequestError(reason)
        self._limits.check(len(prompt), request.max_new_tokens, window, _check_search(request, self._runner))
        vocab_size = self._runner.vocab_size
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            bad = next(token for token in prompt if not 0 <= token < vocab_size)
            raise InvalidRequestError(f"prompt token {bad} is outside the vocabulary of {vocab_size}")
        if request.thought is not None:
            written = (*request.thought.end, *request.thought.end_again)
            if not request.thought.end or any(not 0 <= token < vocab_size for token in written):
                raise InvalidRequestError("the end of a thought has no tokens, or one outside the vocabulary")
        return window


def _check_resumed(request: GenerateRequest) -> None:
    """Raises InvalidRequestError for options under which an output can't be resumed from its tokens alone."""
    known = len(request.resumed_token_ids)
    if known >= request.max_new_tokens:
        raise InvalidRequestError(f"an output of {request.max_new_tokens} tokens can't go on after {known}")
    if request.sampling.seed is None and request.sampling.temperature > 0:
        raise InvalidRequestError("an output can go on only with its seed")
    if request.search is not None or request.prompt_logprobs is not None or request.pooling is not None:
        raise InvalidRequestError("only a sampled output can go on, without what was read of its prompt")


def _check_search(request: GenerateRequest, runner: ModelRunner) -> int | None:
    """Returns the most branches of the request's search; None if it is no search. Raises InvalidRequestError."""
    params = request.search
    if params is None:
        return None
    name, width = ("num_beams", params.beams) if isinstance(params, BeamParams) else ("top_k", params.candidates)
    most = min(runner.max_sequences, runner.vocab_size)
    if not 1 <= width <= most:
        raise InvalidRequestError(f"{name} must be 1 to {most}, not {width}")
    if isinstance(params, BeamParams):
        _check_beams(params)
    elif not 0 <= params.alpha <= 1:
        raise InvalidRequestError(f"penalty_alpha must be 0 to 1, not {params.alpha}")
    if request.max_new_tokens < 1:
        raise InvalidRequestError("max_new_tokens must be at least 1 for a search")
    if request.window is not None or request.needs_scores or request.grammar is not None or request.thought is not None:
        raise InvalidRequestError("a search has neither window nor scores nor grammar nor budget for a thought")
    return width


def _check_beams(params: BeamParams) -> None:
    if not 1 <= params.answers <= params.beams:
        raise InvalidRequestError(f"{params.answers} answers of {params.beams} beams")
    if params.groups < 1 or params.beams % params.groups:
        raise InvalidRequestError(f"num_beam_groups: {params.groups} does not divide {params.beams} beams")
    if not 0 <= params.diversity_penalty <= 1e6:
        raise InvalidRequestError(f"diversity_penalty must be 0 to 1e6, not {params.diversity_penalty}")
    if not -10 <= params.length_penalty <= 10:
        raise InvalidRequestError(f"length_penalty must be -10 to 10, not {params.length_penalty}")
