import pytest


@pytest.fixture(autouse=True)
def patient_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are always to be restored are waited for, on a machine that has other work too."""
    monkeypatch.setattr("app.engine.memory.loads._ALWAYS_DEADLINE_S", 600.0)
