"""What the engines under comparison are asked to do, and the process' side of asking: JSON lines on standard streams.

The process announces itself with an `About` line when its model is loaded, then answers each `Work` line with the
seconds it took, under one of its own variants (settings that it can be run with), or with a refusal of what it cannot
do. Standard library only: it runs in the peers' own environments too. The bench's side is `bench.process`.
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
    """Sequences side by side; prefill has one."""
    context_tokens: int
    """Prefill: the prompt's tokens. Decode: the tokens that each stream has before the clock starts."""
    new_tokens: int
    """Decode: steps on the clock, each making a token for each stream."""

    @property
    def tokens(self) -> int:
        """Tokens that the seconds are about."""
        return self.context_tokens if self.kind == "prefill" else self.streams * self.new_tokens

    @property
    def name(self) -> str:
        """As it is called in a report."""
        if self.kind == "prefill":
            return f"prefill {self.context_tokens}"
        return f"decode {self.streams} at {self.context_tokens}"


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""Seconds by name. On a machine that others use, CPU seconds of one thread still compare well; those of several do
not, as threads that wait for each other spin."""


@dataclass(frozen=True, slots=True)
class About:
    """What a process says of itself."""

    version: str
    settings: str
    variants: tuple[str, ...]
    load_s: float


class NotSupportedError(Exception):
    """This engine, or this variant of it, cannot do this work; the message says why. The process lives on."""


def works(
    prompts: Sequence[int], decode_context: int, generate: int, batches: Sequence[int], contexts: Sequence[int] = ()
) -> list[Work]:
    """Prompts, then decoding at each batch, then for each long context its prompt and one stream after it."""
    result = [Work("prefill", 1, tokens, 0) for tokens in prompts]
    result += [Work("decode", streams, decode_context, generate) for streams in batches]
    for tokens in contexts:
        result += [Work("prefill", 1, tokens, 0), Work("decode", 1, tokens, generate)]
    return list(dict.fromkeys(result))


def serve(about: About, measure: Callable[[Work, str], float], answers: TextIO) -> None:
    """Answers works from standard input until it is closed.

    `measure(work, variant)` returns seconds, or raises NotSupportedError. answers: what `take_stdout` gave.
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
    """Standard output for answers alone: from here on, what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers
