"""Rolling changes of a one-worker model on a real Ray Serve, under load: nothing is refused, and no text is wrong."""

import json
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.service, pytest.mark.faults]

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def changes(service_model: Path) -> dict[str, Answers]:
    command = [sys.executable, "-m", "tests.service.rolling_on_ray", str(service_model)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False)
    assert result.returncode == 0, result.stderr
    values: dict[str, Answers] = json.loads(result.stdout)
    return values


def by_client(answers: Answers) -> list[Answers]:
    lists = defaultdict(list)
    for answer in answers:
        lists[answer["client"]].append(answer)
    return list(lists.values())


def test_changed_settings(changes: dict[str, Answers]) -> None:
    """The new worker is warm before the old one goes, and so is the new ingress."""
    old, _ = (clean["text"] for clean in changes["clean"])
    assert len(changes["settings"]) > 20
    assert {(one["status"], one["text"]) for one in changes["settings"]} == {(200, old)}


def test_another_version_of_the_model(changes: dict[str, Answers]) -> None:
    """Each answer is wholly of one version. Two ingresses may notice the change one after the other."""
    old, new = (clean["text"] for clean in changes["clean"])
    assert old != new
    assert {one["status"] for one in changes["model"]} == {200}
    for answers in by_client(changes["model"]):
        texts = [one["text"] for one in answers]
        assert set(texts) == {old, new}
        assert (texts[0], texts[-1]) == (old, new)


def test_another_name(changes: dict[str, Answers]) -> None:
    """The old name answers until the new one does: never neither of them."""
    _, text = (clean["text"] for clean in changes["clean"])
    for answers in by_client(changes["name"]):
        first, second = ([one["status"] for one in answers if one["model"] == name] for name in ("first", "second"))
        assert (first[0], first[-1], set(first)) == (200, 404, {200, 404})
        assert (second[0], second[-1], set(second)) == (404, 200, {200, 404})
        for before, after in pairwise(answers):  # the client asks for the first, then for the second
            assert (before["model"], before["status"], after["status"]) != ("first", 404, 404)
        assert {one["text"] for one in answers if one["status"] == 200} == {text}
