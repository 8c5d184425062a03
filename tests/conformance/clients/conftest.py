"""Fixtures with the service's address and its model. Runs in the client's own environment."""

import os
from pathlib import Path

import pytest
from agents import Desk


@pytest.fixture(scope="session")
def url() -> str:
    return os.environ["REDOUBT_URL"]


@pytest.fixture(scope="session")
def base_url(url: str) -> str:
    return f"{url}/v1"


@pytest.fixture(scope="session")
def model() -> str:
    return os.environ["REDOUBT_MODEL"]


@pytest.fixture(scope="session")
def encoder() -> str:
    """What the service has beside the model."""
    return os.environ["REDOUBT_ENCODER"]


@pytest.fixture(scope="session")
def work() -> Path:
    """What run.py has prepared for this client."""
    return Path(os.environ["REDOUBT_WORK"])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """For an agent whose model is a script."""
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    return Desk(os.environ["REDOUBT_SCRIPTED_URL"], folder, home, Path(os.environ["REDOUBT_WORK"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what a model of 135 million parameters gets wrong: a module's XFAIL says which tests, and why.

    Not strictly: a later model, or another draw, may get it right.
    """
    for item in items:
        expected: dict[str, str] = getattr(item.getparent(pytest.Module).obj, "XFAIL", {})
        reason = expected.get(item.name) or expected.get(getattr(item, "originalname", item.name))
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
