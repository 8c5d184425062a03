"""Files of multiple-choice questions: HellaSwag, PIQA and WinoGrande as published, and a simple JSONL.

Context and choices are put together as EleutherAI's harness does it (its tasks `hellaswag`, `piqa`, `winogrande`), so
that results compare. Sources of the formats: each set's own JSONL, the names of its fields and labels; for HellaSwag
also the text files of klosax/hellaswag_text_data. Does not know how questions are scored.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.eval.choices import ChoiceTask
from bench.eval.errors import EvalError
from bench.eval.text_windows import read_text

_NOTES: Final = re.compile(r"\[.*?\]")


def hellaswag_tasks(path: Path) -> list[ChoiceTask]:
    """HellaSwag's own `.jsonl`, or text of six lines a task: context, the right ending's number from 0, four endings.

    Raises EvalError naming the line.
    """
    if path.suffix == ".jsonl":
        return [_hellaswag_task(path, number, entry) for number, entry in _all_json_lines(path)]
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


def _hellaswag_task(path: Path, number: int, entry: dict[str, Any]) -> ChoiceTask:
    first, second, activity = _texts(path, number, entry, "ctx_a", "ctx_b", "activity_label")
    endings = entry.get("endings")
    if not isinstance(endings, list) or len(endings) != 4 or not all(isinstance(ending, str) for ending in endings):
        raise EvalError(f"{path}: line {number} has no four endings")
    context = _without_notes(f"{activity}: {first} {second.capitalize()}")
    answer = _label(path, number, entry.get("label"), range(4))
    return ChoiceTask(context, tuple(f" {_without_notes(ending)}" for ending in endings), answer)


def _without_notes(text: str) -> str:
    """Without what WikiHow's pages left in brackets in the texts."""
    return _NOTES.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def piqa_tasks(path: Path) -> list[ChoiceTask]:
    """PIQA's `.jsonl`: `goal`, `sol1`, `sol2`, and `label`, the right one's number from 0.

    Without labels in the file they come from STEM-labels.lst beside it. Raises EvalError naming the line.
    """
    labels_file = path.with_name(f"{path.stem}-labels.lst")
    labels = read_text(labels_file).split() if labels_file.is_file() else None
    tasks = []
    for index, (number, entry) in enumerate(_all_json_lines(path)):
        goal, *solutions = _texts(path, number, entry, "goal", "sol1", "sol2")
        label = entry.get("label")
        if label is None:
            if labels is None:
                raise EvalError(f"{path}: line {number} has no label, and {labels_file.name} is not beside it")
            label = labels[index] if index < len(labels) else None
        answer = _label(path, number, label, range(2))
        tasks.append(ChoiceTask(f"Question: {goal}\nAnswer:", tuple(f" {text}" for text in solutions), answer))
    return tasks


def winogrande_tasks(path: Path) -> list[ChoiceTask]:
    """WinoGrande's `.jsonl`: a `sentence` with one `_`, `option1`, `option2`, `answer` 1 or 2.

    Each option is a context up to its place; the rest of the sentence is the continuation of both. Raises EvalError
    naming the line.
    """
    tasks = []
    for number, entry in _all_json_lines(path):
        sentence, *options = _texts(path, number, entry, "sentence", "option1", "option2")
        before, gap, after = sentence.partition("_")
        if not gap or not after.strip():
            raise EvalError(f"{path}: line {number} has no _ with words after it")
        answer = _label(path, number, entry.get("answer"), range(1, 3)) - 1
        contexts = tuple(before + option for option in options)
        tasks.append(ChoiceTask(contexts, (f" {after.strip()}",) * 2, answer))
    return tasks


def _texts(path: Path, number: int, entry: dict[str, Any], *names: str) -> list[str]:
    values = [entry.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str):
            raise EvalError(f"{path}: line {number} has no {name}")
    return [str(value) for value in values]


def _label(path: Path, number: int, value: object, numbers: range) -> int:
    text = str(value)
    if not text.isdecimal() or int(text) not in numbers:
        raise EvalError(f"{path}: line {number} has the answer {value!r}, not {numbers[0]} to {numbers[-1]}")
    return int(text)


def jsonl_tasks(path: Path) -> list[ChoiceTask]:
    """A line a task: {"context": text, "choices": [text, ...], "answer": a number from 0 or a letter}.

    "question" may stand for "context". A choice follows its context after a space. Raises EvalError naming the line.
    """
    tasks = []
    for number, entry in _all_json_lines(path):
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


def set_files(folder: Path, names: Sequence[str], known: Collection[str]) -> dict[str, Path]:
    """LongBench's files SET.jsonl by set: of `names`, or of those known sets that are there. Raises EvalError."""
    for name in names:
        if name not in known:
            raise EvalError(f"LongBench set {name!r} is not one of {', '.join(known)}")
    files = {name: folder / f"{name}.jsonl" for name in names or known}
    there = {name: path for name, path in files.items() if path.exists() or names}
    if not there:
        raise EvalError(f"{folder}: has no SET.jsonl of LongBench's English sets")
    return there


def _all_json_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    lines = list(json_lines(path))
    if not lines:
        raise EvalError(f"{path}: holds no question")
    return lines
