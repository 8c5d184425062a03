"""What the beginnings of files tell."""

from pathlib import Path

from app.models.hub import HubFile
from app.models.skeleton import Pace


def test_small_files_tell_no_pace(tmp_path: Path) -> None:
    pace = Pace()
    for name, size_bytes, is_told in (("small.json", 3 << 20, False), ("large.json", 5 << 20, True)):
        with pace.measured(tmp_path, HubFile(name, size_bytes, "")):
            (tmp_path / f"{name}.part").write_bytes(bytes(size_bytes))
        assert (pace.bytes_per_s > 0) == is_told
