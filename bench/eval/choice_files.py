"""Files of multiple-choice questions: HellaSwag's six lines, a simple JSONL, C-Eval's folder of CSV files.

Sources of the formats: the text files of klosax/hellaswag_text_data; C-Eval's README and its evaluators (Huang et al.
2023). Does not know how questions are scored.
"""

import csv
import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.eval.choices import ChoiceTask
from bench.eval.errors import EvalError
from bench.eval.text_windows import read_text

_LETTERS: Final = ("A", "B", "C", "D")
_CEVAL_SHOTS: Final = 5


def hellaswag_tasks(path: Path) -> list[ChoiceTask]:
    """Six lines a task: context, the right ending's number from 0, four endings. Raises EvalError naming the line."""
    lines = read_text(path).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines or len(lines) % 6:
        raise EvalError(f"{path}: has {len(lines)} lines, no multiple of HellaSwag's six a task")
    tasks = []
    for at in range(0, len(lines), 6):
        context, answer, *endings = lines[at : at + 6]
        if answer.strip() not in ("0", "1", "2", "3"):
            raise EvalError(f"{path}: line {at + 2} is {answer!r}, not the number of an ending")
        tasks.append(ChoiceTask(context, tuple(f" {ending.strip()}" for ending in endings), int(answer)))
    return tasks


def jsonl_tasks(path: Path) -> list[ChoiceTask]:
    """A line a task: {"context": text, "choices": [text, ...], "answer": a number from 0 or a letter}.

    "question" may stand for "context". A choice follows its context after a space. Raises EvalError naming the line.
    """
    tasks = []
    for number, entry in json_lines(path):
        context, choices = entry.get("context", entry.get("question")), entry.get("choices")
        if not isinstance(context, str) or not isinstance(choices, list) or len(choices) < 2:
            raise EvalError(f"{path}: line {number} lacks a context, or has fewer than two choices")
        if not all(isinstance(choice, str) and choice.strip() for choice in choices):
            raise EvalError(f"{path}: line {number} has a choice that is not text")
        answer = _answer(entry.get("answer"), len(choices))
        if answer is None:
            raise EvalError(
                f"{path}: line {number} has the answer {entry.get('answer')!r}, which is none of its choices"
            )
        tasks.append(ChoiceTask(context, tuple(f" {choice.strip()}" for choice in choices), answer))
    if not tasks:
        raise EvalError(f"{path}: holds no question")
    return tasks


def _answer(value: object, choices: int) -> int | None:
    if isinstance(value, str) and len(value) == 1 and value.isalpha():
        value = ord(value.upper()) - ord("A")
    return value if type(value) is int and 0 <= value < choices else None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not empty. Raises EvalError naming the line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise EvalError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(entry, dict):
            raise EvalError(f"{path}: line {number} is not a JSON object")
        yield number, entry


def ceval_tasks(folder: Path, split: str, limit: int | None) -> list[ChoiceTask]:
    """Reads all subjects of `folder`/{dev,val}/SUBJECT_{dev,val}.csv: five dev examples, then a question of `split`.

    The choices are the letters, directly after the prompt's colon, as the authors' own evaluators score them. A task's
    group is its subject; limit: the first questions of each. Raises EvalError naming the file.
    """
    files = sorted((folder / split).glob(f"*_{glob.escape(split)}.csv"))
    if not files:
        raise EvalError(f"{folder}: has no {split}/SUBJECT_{split}.csv, as C-Eval is published")
    tasks = []
    for path in files:
        subject = path.name.removesuffix(f"_{split}.csv")
        examples = folder / "dev" / f"{subject}_dev.csv"
        prompt = f"以下是关于{subject}的单项选择题，请选出正确答案。\n\n"
        if examples.exists():
            shots = _csv_rows(examples, "answer")[:_CEVAL_SHOTS]
            prompt += "".join(f"{_ceval_question(row)}{row['answer']}\n\n" for row in shots)
        for row in _csv_rows(path, "answer")[:limit]:
            if row["answer"] not in _LETTERS:
                raise EvalError(f"{path}: question {row.get('id')} has the answer {row['answer']!r}")
            answer = _LETTERS.index(row["answer"])
            tasks.append(ChoiceTask(prompt + _ceval_question(row), _LETTERS, answer, subject))
    return tasks


def _ceval_question(row: dict[str, str]) -> str:
    choices = "".join(f"\n{letter}. {row[letter]}" for letter in _LETTERS)
    return f"{row['question']}{choices}\n答案："


def _csv_rows(path: Path, *also: str) -> list[dict[str, str]]:
    rows = list(csv.DictReader(read_text(path).removeprefix("\ufeff").splitlines(keepends=True)))
    needed = ("question", *_LETTERS, *also)
    for number, row in enumerate(rows, 2):
        missing = [name for name in needed if not row.get(name)]
        if missing:
            raise EvalError(f"{path}: line {number} lacks {', '.join(missing)} (C-Eval's test set has no answers)")
    return rows
