"""What tests of several packages share: the embedded model, as downloaded and as converted by `make model`.

Without it those tests are skipped, so that the fast ones run in a bare checkout; `make test` sets
REDOUBT_TEST_ALL, which makes the lack a failure.
"""

import os
from pathlib import Path

import pytest

EMBEDDED = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"


def _needed(path: Path) -> Path:
    if not path.exists():
        reason = f"{path} is missing: run `make model`"
        if os.environ.get("REDOUBT_TEST_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def embedded_gguf() -> Path:
    """The GGUF file as it was downloaded."""
    return _needed(EMBEDDED.with_suffix(".gguf"))


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The folder of the converted model."""
    return _needed(EMBEDDED / "config.json").parent
