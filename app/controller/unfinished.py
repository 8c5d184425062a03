"""An output that can outlive its worker: its tokens so far, the request for the next worker, and when to give up.

An output is determined by its prompt, its parameters, its seed and the tokens so far. So it continues on any worker of
the model, and the client sees a pause. A request that crashes its worker must not crash all of them: it is tried twice.
Nobody knows which of the requests on a crashed worker was the cause. So each of them is tried alone, until it has made
some more tokens. This applies to crashes only: a worker killed from outside leaves no mark (`app.messages.crashes`). No
Ray, no clock.
"""

import os
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from app.messages.failures import RequestGivenUpError
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import GenerateRequest

MOST_CRASHES: Final = 2
"""How many workers in a row may crash with a request."""
MOST_LOSSES: Final = 5
"""How many workers in a row may be lost in any way, without a detected crash."""
ENOUGH_TOKENS: Final = 8
"""After this many tokens on one worker, the request counts as cleared of the last crash."""


class UnfinishedOutput:
    """One request's output so far. For one event loop."""

    def __init__(self, request: GenerateRequest) -> None:
        """Draws the seed, if the request has none."""
        sampling = request.sampling
        if request.search is None and sampling.seed is None and sampling.temperature > 0:
            seed = int.from_bytes(os.urandom(8), "little")
            request = replace(request, sampling=replace(sampling, seed=seed))
        self._request = request
        self._known = array("i")
        self._attempts = 0
        self._worker_arithmetic = self._made_with = (
            ""  # of the present worker, and of the one that made the last tokens
        )
        self._of_attempt = 0  # tokens from the present worker
        self._to_skip = 0  # tokens that the client already has of a search, which starts over
        self._crashes = self._losses = 0  # in a row
        self._untold: tuple[Loss, ...] = ()
        self.is_finished = False
        self.on_enough: Callable[[], None] | None = None
        """Called once the present worker has made ENOUGH_TOKENS."""

    @property
    def request_id(self) -> str:
        """The id at the ingress and the first worker; on further workers ~2, ~3 ... is appended."""
        return self._request.request_id

    @property
    def has_begun(self) -> bool:
        """Whether a worker has had it: then it has a place, and may have tokens."""
        return self._losses > 0 or len(self._known) > 0

    @property
    def tokens(self) -> int:
        """How many tokens are known."""
        return len(self._known)

    @property
    def is_suspect(self) -> bool:
        """Whether it may have crashed a worker."""
        return self._crashes > 0

    def rest(self) -> GenerateRequest:
        """The request for the next worker. Its own id separates late tokens of the previous one."""
        self._attempts += 1
        self._of_attempt = 0
        self._worker_arithmetic = ""
        request = self._request
        if self._attempts == 1:
            return request
        known = len(self._known)
        again = replace(
            request,
            request_id=f"{request.request_id}~{self._attempts}",
            reports_progress=request.reports_progress and not known,
        )
        if request.search is not None:
            self._to_skip = known
            return again
        return replace(
            again,
            resumed_token_ids=tuple(self._known),
            resumed_arithmetic=self._made_with,
            prompt_logprobs=None if known else request.prompt_logprobs,
        )

    def add(self, delta: TokenDelta) -> TokenDelta:
        """Adds a delta of the present worker; returns its new part, with the losses since the last delta."""
        if self._to_skip and delta.token_ids:
            skipped = min(self._to_skip, len(delta.token_ids))
            self._to_skip -= skipped
            delta = delta._replace(token_ids=delta.token_ids[skipped:], cached_tokens=0)
        self._worker_arithmetic = delta.arithmetic or self._worker_arithmetic
        if delta.token_ids:
            self._made_with = self._worker_arithmetic
        self._known.extend(delta.token_ids)
        self._of_attempt += len(delta.token_ids)
        self.is_finished = delta.finish_reason is not None
        if self.on_enough is not None and (self._of_attempt >= ENOUGH_TOKENS or self.is_finished):
            enough, self.on_enough = self.on_enough, None
            enough()
        if self._untold:
            delta, self._untold = delta._replace(losses=self._untold), ()
        return delta

    def lost(self, loss: Loss) -> None:
        """Records the loss of the present worker. Raises RequestGivenUpError if there were too many."""
        self._untold += (loss,)
        if self._of_attempt >= ENOUGH_TOKENS:
            self._crashes = self._losses = 0
        if loss is Loss.MOVED:
            self._losses = max(self._losses, 1)
            return
        self._losses += 1
        self._crashes += loss is Loss.CRASHED
        if self._crashes >= MOST_CRASHES or self._losses >= MOST_LOSSES:
            raise RequestGivenUpError(
                f"{self._losses} workers have ended, one after another, while they computed this request. It is not "
                "tried again."
            )
