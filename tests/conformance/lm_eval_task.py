"""A small task for lm_eval from a text of this repository, and the numbers of our own evaluation on the same model.

Tests download no data set, so each question is a place in a book: which of four endings comes next? lm_eval has to find
over HTTP the likelihoods that `redoubt eval` computes directly.
"""

import json
from pathlib import Path

import httpx
import numpy as np
from tokenizers import Tokenizer

from bench.eval.choices import ChoiceTask, Scorer, context_tokens, encode_task
from bench.eval.open_model import ModelOptions, open_model
from quant.calibration.log_probabilities import log_probabilities
from quant.packed.native_model import NativeModel
from tests.conformance import published_sets

TEXT = Path(__file__).parents[1] / "data" / "alice.txt"
QUESTIONS = 24
CONTEXT_WORDS = 20
END_WORDS = 8
GENERATED = 6
GENERATED_TOKENS = 16
CHOICES = 4

_TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{text}"
doc_to_target: "{target}"
"""
_CHOICES = """\
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
_WORDS = """\
generation_kwargs: {until: [","], do_sample: false, temperature: 0, max_gen_toks: 16}
metric_list: [{metric: exact_match}]
"""
_ROLLING = """\
metric_list: [{metric: word_perplexity}]
"""


def questions() -> list[ChoiceTask]:
    """The same every time: some words of the text, and the next few among those that come elsewhere."""
    words = TEXT.read_text(encoding="utf-8").split()
    step = (len(words) - CONTEXT_WORDS - END_WORDS) // QUESTIONS
    begins = range(0, QUESTIONS * step, step)
    ends = [" " + " ".join(words[begin + CONTEXT_WORDS :][:END_WORDS]) for begin in begins]
    tasks = []
    for i, begin in enumerate(begins):
        answer = i % CHOICES
        choices = [ends[(i + 5 * (j + 1)) % QUESTIONS] for j in range(CHOICES - 1)]
        choices.insert(answer, ends[i])
        tasks.append(ChoiceTask(" ".join(words[begin:][:CONTEXT_WORDS]), tuple(choices), answer))
    return tasks


def prepare(folder: Path, model: Path, url: str, name: str) -> None:
    """Writes the tasks for lm_eval, and `expected.json` with what it should find; asks the service for greedy texts."""
    tasks = questions()
    lines = [
        {"query": task.context, "choices": [text[1:] for text in task.continuations], "gold": task.answer}
        for task in tasks
    ]
    text = " ".join(TEXT.read_text(encoding="utf-8").split())
    (folder / "choices.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    choices = _TASK.format(
        name="redoubt_endings",
        data=folder / "choices.jsonl",
        kind="multiple_choice",
        text="{{query}}",
        target="{{gold}}",
    )
    rolling = _TASK.format(
        name="redoubt_text", data=folder / "text.jsonl", kind="loglikelihood_rolling", text="", target="{{text}}"
    )
    (folder / "redoubt_endings.yaml").write_text(choices + _CHOICES)
    (folder / "redoubt_text.yaml").write_text(rolling + _ROLLING)
    answers = [{"prompt": task.context, "answer": _greedy(url, name, str(task.context))} for task in tasks[:GENERATED]]
    (folder / "words.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answers))
    published_sets.write(folder)
    expected = _expected(tasks, text, model) | {"sets": published_sets.expected(folder, model)}
    (folder / "expected.json").write_text(json.dumps(expected))
    (folder / "redoubt_words.yaml").write_text(
        _TASK.format(
            name="redoubt_words",
            data=folder / "words.jsonl",
            kind="generate_until",
            text="{{prompt}}",
            target="{{answer}}",
        )
        + _WORDS
    )
    (folder / "tokenizer").unlink(missing_ok=True)
    (folder / "tokenizer").symlink_to(model.absolute())


def _greedy(url: str, name: str, prompt: str) -> str:
    body = {"model": name, "prompt": prompt, "temperature": 0, "max_tokens": GENERATED_TOKENS, "stop": [","]}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    return str(answer.raise_for_status().json()["choices"][0]["text"])


def _expected(tasks: list[ChoiceTask], text: str, model: Path) -> dict[str, object]:
    with open_model(model, ModelOptions()) as opened:
        tokenizer = opened.tokenizer()
        token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        width = max(context_tokens(tokenizer, tasks, opened.context_tokens), len(token_ids) + 1)
        with opened.load(width, CHOICES) as native:
            scorer = Scorer(native)
            likelihoods = [scorer.score(encode_task(tokenizer, task)) for task in tasks]
            rolling = {begin: _log_likelihood(native, begin, token_ids) for begin in _special_ids(tokenizer)}
    right = [int(np.argmax(values)) == task.answer for values, task in zip(likelihoods, tasks, strict=True)]
    return {"likelihoods": likelihoods, "acc": sum(right) / len(right), "text": rolling}


def _special_ids(tokenizer: Tokenizer) -> list[int]:
    """The harness puts one of them before a text: we say what would come of each."""
    return [token for token, added in sorted(tokenizer.get_added_tokens_decoder().items()) if added.special][:3]


def _log_likelihood(model: NativeModel, begin: int, token_ids: list[int]) -> float:
    """Of a text after the token `begin`."""
    parts = model.logits([begin, *token_ids[:-1]])
    return float(sum(log_probabilities(rows, np.array(token_ids[at : at + len(rows)])).sum() for at, rows in parts))
