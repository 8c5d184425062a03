from pathlib import Path

import pytest

from app.memory.check import check_folder
from tests.app.memory.pages import FILE_BYTES, files_in, grant_for, id_of, open_folder, write


def folder_of_pages(root: Path) -> list[Path]:
    folder = open_folder(root)
    for user in ("ada", "eve"):
        for index in range(3):
            write(folder, id_of(user, "text", index))
    return sorted(files_in(root))


def test_a_sound_folder(tmp_path: Path) -> None:
    folder_of_pages(tmp_path)
    report = check_folder(tmp_path)
    assert not report.wrong
    assert {owner: count for (owner, _), count in report.pages.items()} == {
        grant_for("ada").owner: 3,
        grant_for("eve").owner: 3,
    }
    assert sum(report.bytes.values()) == 6 * FILE_BYTES


def test_what_is_no_page_where_it_lies(tmp_path: Path) -> None:
    files = folder_of_pages(tmp_path)
    owner = tmp_path / "v1" / files[0].relative_to(tmp_path).parts[1]
    mine = [path for path in files if owner in path.parents]
    good, changed, exchanged = mine
    changed.write_bytes(b"x" + changed.read_bytes()[1:])
    exchanged.write_bytes(good.read_bytes())
    short = next(path for path in files if owner not in path.parents)
    short.write_bytes(short.read_bytes()[:50])
    (good.parent / f".tmp-{'0' * 32}").touch()
    (good.parent / "notes.txt").touch()
    (good.parent / f"{good.name[:2]}{'0' * 62}.kv").symlink_to("/etc/passwd")
    elsewhere = good.parent.parent / ("00" if good.name[:2] != "00" else "01")
    elsewhere.mkdir(exist_ok=True)
    good.rename(elsewhere / good.name)
    (tmp_path / "v1" / "link").symlink_to(tmp_path)
    report = check_folder(tmp_path)
    assert report.temporary == 1
    reasons = {path.name: reason for path, reason in report.wrong}
    assert reasons.pop("notes.txt") == reasons.pop("link") == "nothing of that name belongs here"
    assert "lies in another file's folder" in reasons.pop(good.name)
    assert "header is no page's" in reasons.pop(changed.name)
    assert "another page's" in reasons.pop(exchanged.name)
    assert reasons.pop(short.name).startswith(("it has 50 bytes", "it is shorter"))
    assert list(reasons.values()) == ["it is no file"]
    assert sum(report.pages.values()) == 2


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_folder(tmp_path)
