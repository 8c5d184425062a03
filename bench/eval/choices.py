"""Multiple choice by log-likelihood: which continuation of a context is the most likely?

A context's keys and values are computed once for all its continuations, and what it shares with the context before is
not computed again. `acc` takes the most likely one, `acc_norm` the most likely per character (the "normalized
log-likelihood" of EleutherAI's harness, whose rule for splitting context and continuation is followed too). Knows no
data set.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.eval.errors import EvalError
from bench.eval.journal import Journal
from bench.eval.text_windows import begin_tokens
from quant.calibration.log_probabilities import log_probabilities
from quant.packed.native_model import NativeModel

BRANCHES: Final = 5


@dataclass(frozen=True, slots=True)
class ChoiceTask:
    """One question: a context and its continuations, spaces included where they are part of the text."""

    context: str | tuple[str, ...]
    """One for all continuations, or one for each."""
    continuations: tuple[str, ...]
    answer: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class EncodedTask:
    """A tokenized question; no continuation is empty."""

    context: list[int]
    continuations: list[list[int]]

    @property
    def tokens(self) -> int:
        """The longest context and continuation together."""
        return len(self.context) + max(map(len, self.continuations))


def encode_task(tokenizer: Tokenizer, task: ChoiceTask) -> list[EncodedTask]:
    """Each context with its continuations, in order: one part, or one for each continuation.

    Context and continuation are tokenized together and split after as many tokens as the context alone has. Trailing
    spaces of the context belong to the continuation. A context begins with the tokenizer's BOS; without one, an empty
    context is refused.
    """
    if isinstance(task.context, str):
        return [_encode_part(tokenizer, task.context, task.continuations)]
    pairs = zip(task.context, task.continuations, strict=True)
    return [_encode_part(tokenizer, context, [continuation]) for context, continuation in pairs]


def _encode_part(tokenizer: Tokenizer, text: str, continuations: Sequence[str]) -> EncodedTask:
    context = text.rstrip()
    spaces = text[len(context) :]
    begin = begin_tokens(tokenizer)
    alone = _encode(tokenizer, context)
    encoded = [_encode(tokenizer, context + spaces + each)[len(alone) :] for each in continuations]
    if not begin + alone or not all(encoded):
        raise EvalError(f"a question has an empty context or an empty choice: {text[:60]!r}")
    return EncodedTask(begin + alone, encoded)


class Scorer:
    """Scores questions on a model that was loaded with branches, and that nobody else uses meanwhile."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._computed: list[int] = []

    def rows(self, encoded: EncodedTask) -> list[NDArray[np.float32]]:
        """The logits that predict each token of each continuation. Raises EvalError if one does not fit."""
        context, width = encoded.context, self._model.context_tokens
        if encoded.tokens > width:  # the end of the context is more important than its beginning
            context = context[encoded.tokens - width :]
        if not context:
            raise EvalError(f"a choice is longer than the model's {width} tokens")
        wanted = context[:-1]
        pairs = zip(self._computed, wanted, strict=False)
        # A recurrent state is that of one place, so there is nothing to go back to.
        shared = (
            0 if self._model.native.has_states else sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        )
        self._model.prefill(wanted[shared:], shared)
        self._computed = wanted
        branches = [[context[-1], *continuation[:-1]] for continuation in encoded.continuations]
        return list(self._model.branches(len(wanted), branches))

    def score(self, parts: Sequence[EncodedTask]) -> list[float]:
        """The log probability of each continuation after its context."""
        return [
            float(log_probabilities(logits, np.array(continuation)).sum())
            for part in parts
            for logits, continuation in zip(self.rows(part), part.continuations, strict=True)
        ]


def run_choices(
    model: NativeModel,
    tokenizer: Tokenizer,
    tasks: Sequence[ChoiceTask],
    journal: Journal,
    key: str,
    tick: Callable[[], object],
) -> dict[str, Any]:
    """Accuracy over all tasks, plain and normalized, with standard errors, and which tasks were right."""
    right, right_normalized, scorer = [], [], Scorer(model)
    for number, task in enumerate(tasks):
        encoded = encode_task(tokenizer, task)
        scores = journal.get(f"{key}/{number}", partial(scorer.score, encoded))
        by_character = [
            value / len(text.removeprefix(" ")) for value, text in zip(scores, task.continuations, strict=True)
        ]
        right.append(int(np.argmax(scores)) == task.answer)
        right_normalized.append(int(np.argmax(by_character)) == task.answer)
        tick()
    result: dict[str, Any] = {"tasks": len(tasks)} | accuracy("acc", right) | accuracy("acc_norm", right_normalized)
    result["right"] = {"acc": digits(right), "acc_norm": digits(right_normalized)}
    groups = dict.fromkeys(task.group for task in tasks)
    if len(groups) > 1:
        by_group = {
            group: [hit for hit, task in zip(right, tasks, strict=True) if task.group == group] for group in groups
        }
        result["acc_mean_of_groups"] = float(np.mean([np.mean(hits) for hits in by_group.values()]))
        result["groups"] = {group: {"tasks": len(hits)} | accuracy("acc", hits) for group, hits in by_group.items()}
    return result


def digits(right: Sequence[bool]) -> str:
    """A 1 for each task that was right, a 0 for each other, in the order of the tasks."""
    return "".join("1" if hit else "0" for hit in right)


def accuracy(name: str, right: Sequence[bool]) -> dict[str, float]:
    """The share of right answers and its standard error."""
    share = sum(right) / len(right)
    error = math.sqrt(share * (1 - share) / (len(right) - 1)) if len(right) > 1 else 0.0
    return {name: share, f"{name}_stderr": error}


def context_tokens(tokenizer: Tokenizer, tasks: Sequence[ChoiceTask], limit: int) -> int:
    """The context length that these tasks need, at most `limit`."""
    return min(limit, max(part.tokens for task in tasks for part in encode_task(tokenizer, task)))


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
