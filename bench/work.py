"""The measurements of a comparison, and the process' side of the protocol: JSON lines on the standard streams.

A process writes an `About` line when its model is loaded. Then it answers each line with a `Work` and one of its own
variants (settings that it can run with): with the seconds that the work took, or with the reason why it can't do it.
Standard library only: it runs in the peers' own environments too. The bench's side is `bench.process`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TextIO


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement."""

    kind: Literal["prefill", "decode"]
    streams: int
    """Concurrent sequences; prefill has one."""
    context_tokens: int
    """Prefill: the prompt's tokens. Decode: the tokens that each stream has before the clock starts."""
    new_tokens: int
    """Decode: timed steps, each of which generates a token for each stream."""

    @property
    def tokens(self) -> int:
        """Tokens that are processed while the clock runs."""
        return self.context_tokens if self.kind == "prefill" else self.streams * self.new_tokens

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.context_tokens}"
        return f"decode {self.streams} at {self.context_tokens}"


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""Clocks in seconds, by name. On a shared machine the CPU seconds of one thread are comparable; those of several are
not, because threads that wait for each other spin."""


@dataclass(frozen=True, slots=True)
class About:
    """A process' description of itself."""

    version: str
    settings: str
    variants: tuple[str, ...]
    load_s: float


class NotSupportedError(Exception):
    """This engine, or this variant of it, can't do this work; the message says why. The process goes on."""


def works(
    prompts: Sequence[int], decode_context: int, generate: int, batches: Sequence[int], contexts: Sequence[int] = ()
) -> list[Work]:
    """The works: each prompt, decoding at each batch, and for each long context its prompt and one decoding stream."""
    result = [Work("prefill", 1, tokens, 0) for tokens in prompts]
    result += [Work("decode", streams, decode_context, generate) for streams in batches]
    for tokens in contexts:
        result += [Work("prefill", 1, tokens, 0), Work("decode", 1, tokens, generate)]
    return list(dict.fromkeys(result))


def serve(about: About, measure: Callable[[Work, str], float], answers: TextIO) -> None:
    """Answers requests from standard input until it is closed.

    `measure(work, variant)` returns seconds, or raises NotSupportedError. answers: the result of `take_stdout`.
    """
    print(json.dumps(asdict(about)), flush=True, file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer: dict[str, float | str] = {"seconds": measure(Work(**order["work"]), order["variant"])}
        except NotSupportedError as error:
            answer = {"not_supported": str(error)}
        print(json.dumps(answer), flush=True, file=answers)


def take_stdout() -> TextIO:
    """Reserves standard output for answers: from now on, what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers
