"""A rolling change of a one-worker model on a real Ray Serve, under load: nothing is refused, and no text is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.service

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def changes(service_model: Path) -> dict[str, Answers]:
    command = [sys.executable, "-m", "tests.service.rolling_on_ray", str(service_model)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stderr
    values: dict[str, Answers] = json.loads(result.stdout)
    return values


def test_changed_settings(changes: dict[str, Answers]) -> None:
    """The new worker is warm before the old one goes, and so is the new ingress."""
    (clean,) = changes["clean"]
    answers = changes["settings"]
    assert len(answers) > 20
    assert {(one["status"], one["text"]) for one in answers} == {(200, clean["text"])}
