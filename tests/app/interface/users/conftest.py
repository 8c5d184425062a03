from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import Site


@pytest.fixture
async def make_site(tmp_path: Path) -> AsyncIterator[Callable[..., Site]]:
    """Creates ingresses with accounts; all are closed at the end."""
    sites: list[Site] = []

    def make(worker: FakeWorker | None = None, **settings: Any) -> Site:
        worker = worker or FakeWorker(lambda _: deltas([5, 6]))
        sites.append(Site(str(tmp_path / f"accounts-{len(sites)}.db"), worker, **settings))
        return sites[-1]

    yield make
    for site in sites:
        await site.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()
