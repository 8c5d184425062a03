"""Sends a selection of conversations to one server, by a process of its own. Knows OpenAI's API, and no server."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.common import ROOT
from bench.conversations.client import Receipt
from bench.conversations.plan import Selection, TurnRequest, arrival_times_s, model_of

_START_S = 30.0
"""The most that the client's process takes before and after the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How conversations arrive: at random, or each when one of `at_once` clients is free."""

    at_once: int | None = None
    rate: float | None = None
    """Conversations a second, on average."""
    seed: int
    run_s: float
    """The most that a run takes, from its start; requests that are open then have failed."""
    request_s: float | None = None
    """The most that a request takes; None: as long as the run."""
    begin_within_s: float | None = None
    """In a closed loop, no conversation begins later than this; None: all begin."""

    def send(self, url: str, models: Sequence[str], selection: Selection) -> list[Receipt]:
        """Sends all, to one model after the other, and waits. Raises RuntimeError if the client's process fails."""
        job = {
            "url": url,
            "conversations": [
                [body(model_of(number, models), request) for request in one.requests]
                for number, one in enumerate(selection.conversations)
            ],
            "arrivals_s": self._arrivals_s(len(selection.conversations)),
            "at_once": self.at_once,
            "timeout_s": self.run_s if self.request_s is None else self.request_s,
            "begin_within_s": self.begin_within_s,
            "end_by_s": self.run_s,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bench.conversations.client"],
                input=json.dumps(job), capture_output=True, text=True, cwd=ROOT, timeout=self.run_s + _START_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the client did not end within {self.run_s + _START_S:.0f} s") from error
        if done.returncode != 0:
            raise RuntimeError(f"the client ended with status {done.returncode}: {done.stderr.strip()[-1000:]}")
        return [Receipt(**receipt) for receipt in json.loads(done.stdout)]

    def _arrivals_s(self, count: int) -> Sequence[float] | None:
        return None if self.rate is None else arrival_times_s(count, self.rate, self.seed)


def body(model: str, request: TurnRequest) -> dict[str, Any]:
    """One request of the client's job: greedy, and exactly as long as is ordered."""
    messages = [{"role": role, "content": content} for role, content in request.messages]
    prompt = {"prompt": request.token_ids} if request.token_ids else {"messages": messages}
    return {
        "path": "/v1/completions" if request.token_ids else "/v1/chat/completions",
        "body": {
            "model": model,
            **prompt,
            "max_tokens": request.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    }
