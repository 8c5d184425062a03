from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.postgres import PROGRAMS, running_postgres
from tests.app.accounts.world import World, prepare


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(prepare(str(tmp_path / "accounts.db")))
    yield world
    world.accounts.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a Postgres for this module, on loopback."""
    if PROGRAMS is None:
        pytest.skip("there is no Postgres on this machine (Debian: postgresql)")
    with running_postgres() as url:
        yield url
