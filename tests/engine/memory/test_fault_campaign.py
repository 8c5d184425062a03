"""A short run of the fault campaign, and that it notices a store that does not check what it reads."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from app.memory.page_file import HEADER_BYTES, PageFileError, PageId, unseal
from tests.engine.memory.fault_campaign import KINDS, WrongAnswerError, run
from tests.sizes import FULL


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is lost here, and a busy disk takes most of a minute."""
    monkeypatch.setattr(os, "fsync", lambda opened: None)


def test_no_fault_changes_a_token(tmp_path: Path) -> None:
    each = 8 if FULL else 2
    injected = run(each * len(KINDS), tmp_path)
    assert set(injected.values()) == {each}


def test_pages_that_are_used_unchecked_are_noticed(tmp_path: Path) -> None:
    def unchecked(page_id: PageId, file: memoryview, out: memoryview) -> None:
        try:
            unseal(page_id, file, out)
        except PageFileError:
            out[:] = file[HEADER_BYTES : HEADER_BYTES + len(out)]

    with patch("app.memory.folder.unseal", unchecked), pytest.raises(WrongAnswerError, match="fault 0, header_byte"):
        run(1, tmp_path)
