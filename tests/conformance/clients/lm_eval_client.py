"""lm_eval's `local-completions`: its likelihoods over HTTP are those that our own evaluation computes without.

`lm_eval_task.py` prepares the tasks and the expected numbers; the tokenizer is the model folder's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lm_eval
import pytest

OWN_TASKS = {
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "piqa": ("piqa/piqa.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "lambada": ("lambada/lambada_openai.yaml", "test"),
}
"""lm_eval's tasks of the sets whose samples are in the work folder, and the split that each reads."""
_ON_SAMPLES = """\
include: {task}
task: redoubt_{name}
dataset_path: json
dataset_name: null
dataset_kwargs:
  data_files:
    {split}: {data}
"""
TOLERANCE = 2e-4
"""Of a sum of some ten log-probabilities in float32, which travel as JSON."""


@pytest.fixture(scope="session")
def results(base_url: str, model: str, work: Path) -> Path:
    """The folder that one run of the command has written."""
    for name, (task, split) in OWN_TASKS.items():
        own = Path(lm_eval.__file__).parent / "tasks" / task
        text = _ON_SAMPLES.format(task=own, name=name, split=split, data=work / f"{name}.jsonl")
        # It reads the split for training too where the task names one.
        (work / f"redoubt_{name}.yaml").write_text(text + ("training_split: null\n" if split == "validation" else ""))
    output = work / "output"
    for old in output.rglob("*.json*"):
        old.unlink()
    arguments = {
        "model": model,
        "base_url": f"{base_url}/completions",
        "tokenizer": str(work / "tokenizer"),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 4,
        "max_length": 2048,
    }
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    tasks = ["redoubt_endings", "redoubt_text", "redoubt_words", *(f"redoubt_{name}" for name in OWN_TASKS)]
    command += ["--tasks", ",".join(tasks), "--include_path", str(work)]
    command += ["--output_path", str(output), "--log_samples", "--batch_size", "4"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(work / "hub")}
    subprocess.run(command, check=True, env=os.environ | offline)
    return output


def samples(results: Path, task: str) -> list[dict[str, Any]]:
    (path,) = results.rglob(f"samples_{task}_*.jsonl")
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda sample: sample["doc_id"])


@pytest.fixture(scope="session")
def expected(work: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((work / "expected.json").read_text())
    return value


def test_multiple_choice_likelihoods(results: Path, expected: dict[str, Any]) -> None:
    answers = [sample["filtered_resps"] for sample in samples(results, "redoubt_endings")]
    found = [[float(answer[0]) for answer in each] for each in answers]
    assert len(found) == len(expected["likelihoods"])
    for ours, theirs in zip(expected["likelihoods"], found, strict=True):
        assert theirs == pytest.approx(ours, abs=TOLERANCE)


def test_accuracy(results: Path, expected: dict[str, Any]) -> None:
    (path,) = results.rglob("results_*.json")
    scores = json.loads(path.read_text())["results"]["redoubt_endings"]
    assert scores["acc,none"] == pytest.approx(expected["acc"])
    assert scores["acc,none"] > 0.5  # of four: the model has read books


@pytest.mark.parametrize("name", OWN_TASKS)
def test_published_sets(name: str, results: Path, expected: dict[str, Any]) -> None:
    """lm_eval's own task and our evaluation, on the same file: the same texts, likelihoods and scores."""
    ours = expected["sets"][name]
    for likelihoods, sample in zip(ours["likelihoods"], samples(results, f"redoubt_{name}"), strict=True):
        found = [float(answer[0]) for answer in sample["filtered_resps"]]
        assert found == pytest.approx(likelihoods, abs=TOLERANCE)
    (path,) = results.rglob("results_*.json")
    scores = json.loads(path.read_text())["results"][f"redoubt_{name}"]
    metrics = {metric for metric in ("acc", "acc_norm", "perplexity") if f"{metric},none" in scores}
    assert metrics >= {"acc"}
    for metric in metrics:
        assert scores[f"{metric},none"] == pytest.approx(ours[metric], rel=1e-3)


def test_rolling_likelihood_of_a_text(results: Path, expected: dict[str, Any]) -> None:
    (sample,) = samples(results, "redoubt_text")
    found = float(sample["filtered_resps"][0])
    likelihoods = expected["text"].values()
    assert any(found == pytest.approx(value, abs=1e-2) for value in likelihoods), (found, likelihoods)


def test_greedy_generation(results: Path) -> None:
    """Each document's target is our own answer to the same words, asked for directly."""
    found = samples(results, "redoubt_words")
    assert found
    assert all(sample["exact_match"] == 1 for sample in found)
