import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.code_age import in_minutes, last_engine_change


def test_the_engine_changes_where_its_folders_do(tmp_path: Path) -> None:
    def commit(name: str, hour: int) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        variables = {f"GIT_{who}_DATE": f"2026-01-02T{hour:02}:30:59+02:00" for who in ("AUTHOR", "COMMITTER")}
        person = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        for command in (["init", "-q"], ["add", "."], [*person, "commit", "-q", "-m", name]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True, env={**variables, "PATH": "/usr/bin:/bin"})

    assert last_engine_change(tmp_path) is None
    commit("docs/a", 10)
    assert last_engine_change(tmp_path) is None
    commit("app/engine/b", 11)
    commit("app/worker", 12)
    found = last_engine_change(tmp_path)
    assert found is not None
    assert found.at == datetime(2026, 1, 2, 9, 30, tzinfo=UTC)
    commit("kernels/c", 13)
    later = last_engine_change(tmp_path)
    assert later is not None
    assert later.at == datetime(2026, 1, 2, 11, 30, tzinfo=UTC)
    assert last_engine_change(tmp_path, found.commit) == found
    assert last_engine_change(tmp_path, "0123456789") is None
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{tmp_path}", clone], check=True)
    assert last_engine_change(clone) is None  # its only commit seems to have changed everything


def test_a_time_needs_its_offset() -> None:
    with pytest.raises(ValueError, match="offset"):
        in_minutes("2026-01-02T10:30:00")
