"""LAMBADA: does the model find the last word of a passage? As the task `lambada_openai` of EleutherAI's harness.

The file is OpenAI's `lambada_test.jsonl`, or EleutherAI's copy of it: a line a passage, {"text": ...}. `acc` counts the
words of which every token is the likeliest one; `perplexity` is of the words, not of their tokens.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.eval.choice_files import json_lines
from bench.eval.choices import ChoiceTask, EncodedTask, Scorer, accuracy, digits, encode_task
from bench.eval.errors import EvalError
from bench.eval.journal import Journal
from quant.calibration.log_probabilities import log_probabilities
from quant.packed.native_model import NativeModel


def lambada_tasks(path: Path) -> list[ChoiceTask]:
    """Each passage up to its last space, and its last word as the only choice. Raises EvalError naming the line."""
    tasks = []
    for number, entry in json_lines(path):
        text = entry.get("text")
        before, space, word = text.rpartition(" ") if isinstance(text, str) else ("", "", "")
        if not before or not word:
            raise EvalError(f"{path}: line {number} has no text of two words")
        tasks.append(ChoiceTask(before, (space + word,), 0))
    if not tasks:
        raise EvalError(f"{path}: holds no passage")
    return tasks


def run_last_words(
    model: NativeModel,
    tokenizer: Tokenizer,
    tasks: Sequence[ChoiceTask],
    journal: Journal,
    key: str,
    tick: Callable[[], object],
) -> dict[str, Any]:
    """Accuracy and perplexity over all passages, with standard errors, and which words were found."""
    likelihoods, found, scorer = [], [], Scorer(model)
    for number, task in enumerate(tasks):
        (encoded,) = encode_task(tokenizer, task)
        likelihood, is_found = journal.get(f"{key}/{number}", partial(_score, scorer, encoded))
        likelihoods.append(likelihood)
        found.append(bool(is_found))
        tick()
    perplexity = math.exp(-float(np.mean(likelihoods)))
    error = float(np.std(likelihoods, ddof=1) / math.sqrt(len(tasks))) if len(tasks) > 1 else 0.0
    return {
        "tasks": len(tasks),
        **accuracy("acc", found),
        "perplexity": perplexity,
        "perplexity_stderr": perplexity * error,
        "right": {"acc": digits(found)},
    }


def _score(scorer: Scorer, encoded: EncodedTask) -> tuple[float, bool]:
    """The word's log probability, and whether each of its tokens is the likeliest."""
    (rows,), (word,) = scorer.rows(encoded), encoded.continuations
    likelihood = float(log_probabilities(rows, np.array(word)).sum())
    return likelihood, bool((rows.argmax(-1) == np.array(word)).all())
