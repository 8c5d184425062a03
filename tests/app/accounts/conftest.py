from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.accounts.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(str(tmp_path / "accounts.db"))
    yield world
    world.accounts.close()
