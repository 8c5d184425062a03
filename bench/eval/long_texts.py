"""Perplexity on LongBench's English texts: each set's own, and that of all sets together.

Reads the authors' SET.jsonl; only `context` counts, since the questions are no running text. Does not know how windows
are scored.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from bench.eval.choice_files import json_lines, set_files
from bench.eval.errors import EvalError
from bench.eval.journal import Journal
from bench.eval.long_metrics import METRICS, code_similarity
from bench.eval.perplexity import Tick, text_result, window_scores
from bench.eval.text_windows import begin_tokens
from quant.packed.native_model import NativeModel

ENGLISH_SETS: Final = tuple(name for name, metric in METRICS.items() if metric is not code_similarity)
"""LongBench's sets in English, without those of code."""


def long_texts(folder: Path, names: Sequence[str], limit: int | None) -> dict[str, list[str]]:
    """The texts of each set in `folder`, at most `limit` of each. Raises EvalError naming a set or a line."""
    sets = {}
    for name, path in set_files(folder, names, ENGLISH_SETS).items():
        texts = []
        for number, entry in json_lines(path):
            text = entry.get("context")
            if not isinstance(text, str):
                raise EvalError(f"{path}: line {number} has no context")
            texts.append(text)
        if not texts:
            raise EvalError(f"{path}: holds no text")
        sets[name] = texts[:limit]
    return sets


def long_windows(
    tokenizer: Tokenizer, sets: Mapping[str, Sequence[str]], context_tokens: int, tokens: int | None
) -> dict[str, list[list[int]]]:
    """Each set's windows: every text's first `tokens` tokens (None: all), in pieces of at most `context_tokens`.

    A window begins with BOS where the tokenizer puts one before a text. Pieces of a single token are left out, since
    nothing predicts it. Raises EvalError if the context is too short.
    """
    begin = begin_tokens(tokenizer)
    room = context_tokens - len(begin)
    if context_tokens < 2 or room < 1:
        raise EvalError(f"--context {context_tokens}: a window needs two tokens at least")
    windows: dict[str, list[list[int]]] = {}
    for name, texts in sets.items():
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids[:tokens] for text in texts]
        pieces = [begin + ids[at : at + room] for ids in encoded for at in range(0, len(ids), room)]
        windows[name] = [piece for piece in pieces if len(piece) > 1]
        if not windows[name]:
            raise EvalError(f"LongBench's {name}: its texts have no two tokens")
    return windows


def run_long_texts(
    model: NativeModel, sets: Mapping[str, Sequence[Sequence[int]]], journal: Journal, key: str, tick: Tick
) -> dict[str, Any]:
    """The perplexity of all sets' tokens together, and of each set."""
    scores = {name: window_scores(model, windows, journal, f"{key}/{name}", tick) for name, windows in sets.items()}
    together = [window for windows in scores.values() for window in windows]
    results = {name: text_result(windows) for name, windows in scores.items()}
    mean = float(np.exp(np.mean([np.log(result["perplexity"]) for result in results.values()])))
    return text_result(together) | {"perplexity_mean_of_sets": mean, "sets": results}
