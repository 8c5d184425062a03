"""Draws a request's drafts with its own options, random numbers and grammar.

Where a model that drafts and the target agree on the probabilities, they draw the same token. Knows no model.
"""

from dataclasses import replace

from app.engine.generation import Generation
from app.engine.model_runner import DraftSampler, ModelRunner, TokenSampler


class RequestDraws:
    """Of one sequence, whose text only grows."""

    __slots__ = ("_are_scored", "_remembered", "_runner", "_sampler")

    def __init__(self, runner: ModelRunner, *, are_scored: bool = True) -> None:
        """runner: makes the samplers. are_scored: whether they keep the log-probabilities of what they draw."""
        self._runner = runner
        self._are_scored = are_scored
        self._sampler: DraftSampler | None = None  # has drawn the output up to, but not including, its last token
        self._remembered = 0  # output tokens that it has drawn

    def begin(self, generation: Generation) -> TokenSampler:
        """Makes a sampler that is about to draw what comes after the text."""
        constraint = generation.constraint
        sampler = self._after_text(generation)
        return sampler if constraint is None else self._runner.constrained(sampler, constraint.copy())

    def _after_text(self, generation: Generation) -> DraftSampler:
        prompt = generation.request.prompt_token_ids
        tokens = generation.tokens
        if self._sampler is None:
            sampling = replace(generation.request.sampling, logprobs=0 if self._are_scored else None)
            made = self._runner.make_draft_sampler(prompt, sampling, generation.seed)
            if len(tokens) == len(prompt):
                return made
            self._sampler = made
        self._sampler.remember(tokens[len(prompt) + self._remembered : -1])
        self._remembered = len(tokens) - len(prompt) - 1
        return self._sampler.after(tokens[-1])
