"""Multiple choice by log-likelihood: which continuation of a context is the most likely?

A context's keys and values are computed once for all its continuations. `acc` takes the most likely one, `acc_norm` the
most likely per character (the "normalized log-likelihood" of EleutherAI's harness, whose rule for splitting context
and continuation is followed too). Knows no data set.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from bench.eval.errors import EvalError
from bench.eval.journal import Journal
from quant.calibration.log_probabilities import log_probabilities
from quant.packed.native_model import NativeModel

BRANCHES: Final = 5


@dataclass(frozen=True, slots=True)
class ChoiceTask:
    """One question: a context and its continuations, spaces included where they are part of the text."""

    context: str
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


def encode_task(tokenizer: Tokenizer, task: ChoiceTask) -> EncodedTask:
    """Tokenizes context and continuation together and splits after as many tokens as the context alone has.

    Trailing spaces of the context belong to the continuation. A context begins with the tokenizer's BOS; without one,
    an empty context is refused.
    """
    context = task.context.rstrip()
    spaces = task.context[len(context) :]
    begin = _begin_tokens(tokenizer)
    alone = _encode(tokenizer, context)
    continuations = [_encode(tokenizer, context + spaces + text)[len(alone) :] for text in task.continuations]
    if not begin + alone or not all(continuations):
        raise EvalError(f"a question has an empty context or an empty choice: {task.context[:60]!r}")
    return EncodedTask(begin + alone, continuations)


def score(model: NativeModel, encoded: EncodedTask) -> list[float]:
    """The log probability of each continuation after the context."""
    context, width = encoded.context, model.context_tokens
    if encoded.tokens > width:  # the end of the context is more important than its beginning
        context = context[encoded.tokens - width :]
    if not context:
        raise EvalError(f"a choice is longer than the model's {width} tokens")
    model.prefill(context[:-1])
    branches = [[context[-1], *continuation[:-1]] for continuation in encoded.continuations]
    results = model.branches(len(context) - 1, branches)
    return [
        float(log_probabilities(logits, np.array(continuation)).sum())
        for logits, continuation in zip(results, encoded.continuations, strict=True)
    ]


def run_choices(
    model: NativeModel,
    tokenizer: Tokenizer,
    tasks: Sequence[ChoiceTask],
    journal: Journal,
    key: str,
    tick: Callable[[], object],
) -> dict[str, Any]:
    """Accuracy over all tasks, plain and normalized, with standard errors."""
    right, right_normalized = [], []
    for number, task in enumerate(tasks):
        encoded = encode_task(tokenizer, task)
        scores = journal.get(f"{key}/{number}", partial(score, model, encoded))
        by_character = [value / len(text.strip()) for value, text in zip(scores, task.continuations, strict=True)]
        right.append(int(np.argmax(scores)) == task.answer)
        right_normalized.append(int(np.argmax(by_character)) == task.answer)
        tick()
    result: dict[str, Any] = {"tasks": len(tasks)} | accuracy("acc", right) | accuracy("acc_norm", right_normalized)
    groups = dict.fromkeys(task.group for task in tasks)
    if len(groups) > 1:
        by_group = {
            group: [hit for hit, task in zip(right, tasks, strict=True) if task.group == group] for group in groups
        }
        result["acc_mean_of_groups"] = float(np.mean([np.mean(hits) for hits in by_group.values()]))
        result["groups"] = {group: {"tasks": len(hits)} | accuracy("acc", hits) for group, hits in by_group.items()}
    return result


def accuracy(name: str, right: Sequence[bool]) -> dict[str, float]:
    """The share of right answers and its standard error."""
    share = sum(right) / len(right)
    error = math.sqrt(share * (1 - share) / (len(right) - 1)) if len(right) > 1 else 0.0
    return {name: share, f"{name}_stderr": error}


def context_tokens(tokenizer: Tokenizer, tasks: Sequence[ChoiceTask], limit: int) -> int:
    """The context length that these tasks need, at most `limit`."""
    return min(limit, max(encode_task(tokenizer, task).tokens for task in tasks))


def _begin_tokens(tokenizer: Tokenizer) -> list[int]:
    encoding = tokenizer.encode("x")
    bare = len(tokenizer.encode("x", add_special_tokens=False).ids)
    return list(encoding.ids[: encoding.special_tokens_mask.index(0)]) if len(encoding.ids) > bare else []


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
