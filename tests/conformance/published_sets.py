"""Samples in the file formats of four published sets, and what our evaluation makes of them.

lm_eval reads the same files with its own tasks of these sets, which `lm_eval_client.py` points at them. All texts are
written for this test, with the peculiarities that the sets have: notes in brackets, two spaces, a space at an end.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.eval.choice_files import hellaswag_tasks, piqa_tasks, winogrande_tasks
from bench.eval.choices import BRANCHES, ChoiceTask, Scorer, context_tokens, encode_task, run_choices
from bench.eval.journal import Journal
from bench.eval.last_words import lambada_tasks, run_last_words
from bench.eval.open_model import ModelOptions, open_model

READERS: dict[str, Callable[[Path], list[ChoiceTask]]] = {
    "hellaswag": hellaswag_tasks, "piqa": piqa_tasks, "winogrande": winogrande_tasks, "lambada": lambada_tasks,
}  # fmt: skip
_ENDINGS = [
    "turns it and the door swings open.", "eats the key with bread.", "[substeps] paints the lake blue. [title] Rest",
    "sings to the  lock until winter.",
]  # fmt: skip
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "hellaswag": [
        {"ctx_a": f"A {who} puts a key into the lock of a {what}.", "ctx_b": "the " + who, "activity_label": label,
         "endings": _ENDINGS[turn:] + _ENDINGS[:turn], "label": str((4 - turn) % 4)}
        for turn, (who, what, label) in enumerate((
            ("girl", "shed", "Opening a shed"), ("farmer", "barn", "Farm work"), ("guard", "gate", "[header] Guarding"),
            ("man", "house", "Coming home"),
        ))
    ],
    "piqa": [
        {"goal": "Keep a door from closing.", "sol1": "Put a wedge under it.", "sol2": "Put a wedge above the roof. ",
         "label": 0},
        {"goal": "How do I cool a cup of tea?", "sol1": "Boil it again for an hour.", "sol2": "Wait, or add cold milk.",
         "label": 1},
        {"goal": "dry a wet shirt", "sol1": "Hang it in the sun.", "sol2": "Hang it  in the river.", "label": 0},
        {"goal": "Sharpen a pencil", "sol1": "Use a spoon.", "sol2": "Use a sharpener.", "label": 1},
    ],
    "winogrande": [
        {"sentence": "Ann thanked Eve for the help because _ had carried all the boxes.", "option1": "Ann",
         "option2": "Eve", "answer": "2"},
        {"sentence": "The cup did not fit into the box, since the _ was too small.", "option1": "cup", "option2": "box",
         "answer": "2"},
        {"sentence": "Tom asked Max the way, because _ was new in town.", "option1": "Tom", "option2": "Max",
         "answer": "1"},
    ],
    "lambada": [
        {"text": "She had one sister, and everybody in town knew that she loved nobody as much as her sister"},
        {"text": "The dog ran to the gate.\n\u201cStop!\u201d he called, but nobody could stop the dog"},
        {"text": "He looked for his hat everywhere. At last, under the old chair, he found his hat"},
        {"text": "They counted the stones again, and again there were unexpectedly"},
    ],
}  # fmt: skip


def write(folder: Path) -> None:
    """A file for each set."""
    for name, entries in SAMPLES.items():
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def expected(folder: Path, model: Path) -> dict[str, Any]:
    """By set: our evaluation's result, and the log probability of every continuation."""
    results = {}
    for name, read in READERS.items():
        tasks = read(folder / f"{name}.jsonl")
        run = run_last_words if name == "lambada" else run_choices
        with open_model(model, ModelOptions()) as opened:
            tokenizer = opened.tokenizer()
            width = context_tokens(tokenizer, tasks, opened.context_tokens)
            with opened.load(width, BRANCHES) as native:
                journal = Journal(name, folder / "journal")
                result = run(native, tokenizer, tasks, journal, name, lambda: None)
                journal.complete()
                scorer = Scorer(native)
                likelihoods = [scorer.score(encode_task(tokenizer, task)) for task in tasks]
        results[name] = result | {"likelihoods": likelihoods}
    return results
