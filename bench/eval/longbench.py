"""LongBench: the model's greedy answers to questions about long texts, compared with references.

Reads the authors' files: SET.jsonl (input, context, answers, all_classes) and, of their `config` folder,
dataset2prompt.json and dataset2maxlen.json. Without these, our own prompts are used, and the result says so: only with
the authors' prompts can scores be compared with published ones. Source: pred.py and eval.py of THUDM/LongBench.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from bench.eval.choice_files import json_lines, set_files
from bench.eval.errors import EvalError
from bench.eval.journal import Journal
from bench.eval.long_metrics import METRICS, long_score
from kernels import _native
from quant.files.json_file import read_json_object
from quant.packed.native_model import NativeModel

ANSWER_TOKENS: Final[Mapping[str, int]] = {
    "narrativeqa": 128, "qasper": 128, "multifieldqa_en": 64, "hotpotqa": 32, "2wikimqa": 32, "musique": 32,
    "gov_report": 512, "qmsum": 512, "multi_news": 512, "trec": 64, "triviaqa": 32, "samsum": 128,
    "passage_count": 32, "passage_retrieval_en": 32, "lcc": 64, "repobench-p": 64,
}  # fmt: skip
_PLAIN: Final = frozenset({"trec", "triviaqa", "samsum", "lcc", "repobench-p"})
"""Sets that continue a text: no chat template."""
_OWN_PROMPTS: Final[Mapping[str, str]] = {
    "summary": "{context}\n\nSummarize the text above. {input}\nSummary:",
    "count": "{context}\n\nHow many different paragraphs are there above? Answer with a number.\nAnswer:",
    "retrieval": '{context}\n\nAbstract: {input}\n\nWhich paragraph is this the abstract of? Answer like "Paragraph 1".'
    "\nAnswer:",
    "plain": "{context}{input}",
    "examples": "{context}\n{input}",
    "question": "{context}\n\nAnswer briefly, from the text above.\nQuestion: {input}\nAnswer:",
}
_OWN_KIND: Final[Mapping[str, str]] = {
    "gov_report": "summary", "qmsum": "summary", "multi_news": "summary", "passage_count": "count",
    "passage_retrieval_en": "retrieval", "lcc": "plain", "repobench-p": "plain", "trec": "examples",
    "triviaqa": "examples", "samsum": "examples",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LongTask:
    """One text and its question."""

    prompt: str
    answers: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LongSet:
    """One of LongBench's sets."""

    name: str
    tasks: list[LongTask]
    answer_tokens: int


def long_sets(folder: Path, config: Path | None, names: Sequence[str], limit: int | None) -> list[LongSet]:
    """The sets whose files are in `folder`. Raises EvalError naming a file or a set."""
    prompts: Mapping[str, Any] = {} if config is None else read_json_object(config / "dataset2prompt.json")
    lengths: Mapping[str, Any] = {} if config is None else read_json_object(config / "dataset2maxlen.json")
    sets = []
    for name, path in set_files(folder, names, METRICS).items():
        prompt = prompts.get(name, _OWN_PROMPTS[_OWN_KIND.get(name, "question")])
        answer_tokens = lengths.get(name, ANSWER_TOKENS[name])
        if not isinstance(prompt, str) or type(answer_tokens) is not int or answer_tokens < 1:
            raise EvalError(f"{config}: what it says of {name} is no prompt, or no number of tokens")
        tasks = [_task(path, number, entry, prompt) for number, entry in json_lines(path)][:limit]
        if not tasks:
            raise EvalError(f"{path}: holds no task")
        sets.append(LongSet(name, tasks, answer_tokens))
    return sets


def _task(path: Path, number: int, entry: Mapping[str, Any], prompt: str) -> LongTask:
    fields = {name: entry.get(name) for name in ("context", "input")}
    answers, classes = entry.get("answers"), entry.get("all_classes") or []
    if not all(isinstance(value, str) for value in fields.values()) or not isinstance(answers, list) or not answers:
        raise EvalError(f"{path}: line {number} lacks context, input or answers")
    # Not str.format, because prompts come from a file; one pass, so that braces in a text are kept.
    text = re.sub(r"\{(context|input)\}", lambda match: str(fields[match[1]]), prompt)
    return LongTask(text, tuple(map(str, answers)), tuple(map(str, classes)))


class LongModel:
    """A converted model with its tokenizer and chat template, answering greedily."""

    def __init__(self, folder: Path, model: NativeModel) -> None:
        """model: loaded for at least the longest prompt and answer. Raises EvalError."""
        try:
            self._chat = ChatModel.load(folder, max_context_tokens=model.context_tokens)
        except ValueError as error:
            raise EvalError(str(error)) from error
        self._has_template = "chat_template" in read_json_object(folder / "tokenizer_config.json")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._model = model

    def answer(self, name: str, task: LongTask, answer_tokens: int) -> str:
        """The model's answer, without special tokens."""
        prompt = self.prompt(name, task.prompt, self._model.context_tokens - answer_tokens)
        sampler = _native.Sampler(vocab_size=self._model.vocab_size, prompt=prompt, temperature=0.0)
        stops = self._chat.eos_token_ids
        if name == "samsum":
            stops |= set(self._tokenizer.encode("\n", add_special_tokens=False).ids[-1:])
        ids = list(self._model.generate(prompt, sampler, answer_tokens, stops))
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def prompt(self, name: str, text: str, most: int) -> list[int]:
        """A prompt of at most `most` tokens; the middle of a longer text is removed, as the authors do."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        room = most
        while room > 1:
            half = room // 2
            kept = text if len(ids) <= room else self._decode(ids[:half]) + self._decode(ids[len(ids) - half :])
            whole = self._with_template(name, kept)
            if len(whole) <= most:
                return whole
            room = min(room, len(ids)) - (len(whole) - most)
        raise EvalError(f"LongBench's {name}: the context leaves {most} tokens for a prompt, which is too few")

    def _with_template(self, name: str, text: str) -> list[int]:
        if name in _PLAIN or not self._has_template:
            return self._chat.raw_prompt(text)
        try:
            return self._chat.chat_prompt([Message(role="user", content=text)])
        except ApiError as error:
            raise EvalError(f"LongBench's {name}: the chat template refuses a prompt: {error}") from error

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def run_longbench(
    model: LongModel, sets: Sequence[LongSet], journal: Journal, key: str, tick: Callable[[], object]
) -> dict[str, Any]:
    """Each set's mean score in percent with its standard error, and the mean over sets."""
    results: dict[str, Any] = {}
    for each in sets:
        scores = []
        for number, task in enumerate(each.tasks):
            answer = journal.get(
                f"{key}/{each.name}/{number}", partial(model.answer, each.name, task, each.answer_tokens)
            )
            scores.append(100 * long_score(each.name, answer, task.answers, task.classes))
            tick()
        error = float(np.std(scores, ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else 0.0
        results[each.name] = {"score": float(np.mean(scores)), "score_stderr": error, "tasks": len(scores)}
    return {"score": float(np.mean([result["score"] for result in results.values()])), "sets": results}
