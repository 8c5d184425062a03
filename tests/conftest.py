"""What tests of several packages share: the embedded model, as downloaded and as converted, and a browser.

Tests for which something is missing are skipped, so that the fast ones run in a bare checkout; `make test`
sets REDOUBT_TEST_ALL, which makes the lack a failure.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EMBEDDED = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"


def pytest_configure() -> None:
    # A shell starts background jobs with Ctrl-C ignored, and everything below would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing(reason: str) -> NoReturn:
    if os.environ.get("REDOUBT_TEST_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def _needed(path: Path) -> Path:
    if not path.exists():
        _missing(f"{path} is missing: run `make model`")
    return path


@pytest.fixture(scope="session")
def embedded_gguf() -> Path:
    """The GGUF file as it was downloaded."""
    return _needed(EMBEDDED.with_suffix(".gguf"))


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The folder of the converted model."""
    return _needed(EMBEDDED / "config.json").parent


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Headless Chromium. For modules of synchronous tests: it keeps the thread's event loop to itself."""
    executable = shutil.which("chromium")
    if executable is None:
        _missing("there is no chromium")
    from tests.browser import chromium

    with chromium(executable) as browser:
        yield browser
