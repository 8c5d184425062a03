"""C-Eval: the authors' folder of CSV files, five examples a question, and the categories of its 52 subjects.

Sources: C-Eval's README, its evaluators, and its table of subjects (Huang et al. 2023). Does not know how questions are
scored.
"""

import csv
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.eval.choices import ChoiceTask
from bench.eval.errors import EvalError
from bench.eval.text_windows import read_text

_LETTERS: Final = ("A", "B", "C", "D")
_SHOTS: Final = 5
CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "STEM": (
        "advanced_mathematics", "college_chemistry", "college_physics", "college_programming", "computer_architecture",
        "computer_network", "discrete_mathematics", "electrical_engineer", "high_school_biology",
        "high_school_chemistry", "high_school_mathematics", "high_school_physics", "metrology_engineer",
        "middle_school_biology", "middle_school_chemistry", "middle_school_mathematics", "middle_school_physics",
        "operating_system", "probability_and_statistics", "veterinary_medicine",
    ),
    "Social sciences": (
        "business_administration", "college_economics", "education_science", "high_school_geography",
        "high_school_politics", "mao_zedong_thought", "marxism", "middle_school_geography", "middle_school_politics",
        "teacher_qualification",
    ),
    "Humanities": (
        "art_studies", "chinese_language_and_literature", "high_school_chinese", "high_school_history",
        "ideological_and_moral_cultivation", "law", "legal_professional", "logic", "middle_school_history",
        "modern_chinese_history", "professional_tour_guide",
    ),
    "Other": (
        "accountant", "basic_medicine", "civil_servant", "clinical_medicine",
        "environmental_impact_assessment_engineer", "fire_engineer", "physician", "plant_protection", "sports_science",
        "tax_accountant", "urban_and_rural_planner",
    ),
}  # fmt: skip
"""Every subject is in one of these."""
HARD: Final = frozenset({
    "advanced_mathematics", "discrete_mathematics", "probability_and_statistics", "college_chemistry",
    "college_physics", "high_school_mathematics", "high_school_chemistry", "high_school_physics",
})  # fmt: skip
"""The subjects of "C-Eval Hard", which are in STEM too."""


def by_category(subjects: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The mean of the subjects' accuracies in each category, as C-Eval's own table has it; those without one: none.

    The standard error is that of a mean of independent subjects.
    """
    categories = {**CATEGORIES, "Hard": tuple(sorted(HARD)), "Average": tuple(subjects)}
    results = {}
    for name, members in categories.items():
        there = [subjects[member] for member in members if member in subjects]
        if there:
            results[name] = {
                "subjects": len(there),
                "tasks": sum(each["tasks"] for each in there),
                "acc": float(np.mean([each["acc"] for each in there])),
                "acc_stderr": float(np.sqrt(sum(each["acc_stderr"] ** 2 for each in there)) / len(there)),
            }
    return results


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
            shots = _csv_rows(examples, "answer")[:_SHOTS]
            prompt += "".join(f"{_question(row)}{row['answer']}\n\n" for row in shots)
        for row in _csv_rows(path, "answer")[:limit]:
            if row["answer"] not in _LETTERS:
                raise EvalError(f"{path}: question {row.get('id')} has the answer {row['answer']!r}")
            answer = _LETTERS.index(row["answer"])
            tasks.append(ChoiceTask(prompt + _question(row), _LETTERS, answer, subject))
    return tasks


def _question(row: dict[str, str]) -> str:
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
