import pytest

from app.capacity import simulation
from tests import sizes


@pytest.fixture(autouse=not sizes.FULL)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds for a quarter of an hour of requests holds for a few minutes of them."""
    monkeypatch.setattr(simulation, "REQUESTS", 500)
