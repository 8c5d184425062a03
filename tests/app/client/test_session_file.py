"""The file of sessions: who can read it, what is kept, and every way in which it can be wrong."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.client.session_file import SavedSession, SessionFile, SessionFileError, user_file

HERE, THERE = "http://127.0.0.1:8000", "https://chat.internal"
ANN, BEN = SavedSession("ann", "rdbs_a"), SavedSession("ben", "rdbs_b")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "redoubt" / "sessions.json"


def test_a_session_for_each_service(path: Path) -> None:
    file = SessionFile(path)
    assert file.get(HERE) is None
    file.keep(HERE, ANN)
    file.keep(THERE, BEN)
    assert (file.get(HERE), file.get(THERE)) == (ANN, BEN)
    file.keep(HERE, BEN)
    file.remove(HERE, ANN)  # another chat has logged in meanwhile
    assert file.get(HERE) == BEN
    file.remove(HERE, BEN)
    assert (file.get(HERE), file.get(THERE)) == (None, BEN)


def test_only_the_user_can_open_it(path: Path) -> None:
    SessionFile(path).keep(HERE, ANN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["sessions.json"]
    assert "rdbs_a" not in repr(ANN)


def test_a_file_that_others_can_open_is_refused(path: Path) -> None:
    SessionFile(path).keep(HERE, ANN)
    path.chmod(0o640)
    with pytest.raises(SessionFileError, match=r"sessions\.json: other users can open it"):
        SessionFile(path).get(HERE)
    with pytest.raises(SessionFileError, match="other users can open it"):
        SessionFile(path).keep(THERE, BEN)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"name": "ann"}}',
        b'{"a": {"name": "ann", "token": 1}}',
        json.dumps({"a": {"name": "ann\x1b[2J", "token": "t"}}).encode(),
        json.dumps({"a": {"name": "ann", "token": "t\r\nHost: b"}}).encode(),
    ],
)
def test_a_damaged_file_is_named_and_not_written_over(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SessionFileError, match=r"sessions\.json: not a file of sessions; remove it"):
        SessionFile(path).get(HERE)
    with pytest.raises(SessionFileError, match="not a file of sessions"):
        SessionFile(path).keep(HERE, ANN)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    with pytest.raises(SessionFileError, match="Not a directory"):
        SessionFile(tmp_path / "config" / "redoubt" / "sessions.json").keep(HERE, ANN)


def test_chats_that_write_at_once_lose_nothing(path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: SessionFile(path).keep(f"http://{i}", ANN), range(40)))
    assert all(SessionFile(path).get(f"http://{i}") == ANN for i in range(40))


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    assert user_file() == Path("/somewhere/redoubt/sessions.json")
    monkeypatch.setenv("HOME", "/home/ann")
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", unset)
        assert user_file() == Path("/home/ann/.config/redoubt/sessions.json")
