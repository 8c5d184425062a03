"""The folder of pages: what is found again, what is removed, and that no fault of files or disks gives a wrong page."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from app.memory import disk
from app.memory.folder import FolderUse, MemoryFolderError, PageFolder, QuotaError
from app.memory.page_file import HEADER_BYTES, OtherFormatError, PageFileError, PageId
from tests.app.memory import pages
from tests.app.memory.pages import (
    FILE_BYTES,
    contents_of,
    files_in,
    grant_for,
    id_of,
    key_of,
    open_folder,
    path_of,
    read,
    write,
)

ADA = id_of("ada", "text")


def test_a_page_is_found_by_every_process_that_has_its_grant(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    assert read(folder, ADA) is None
    assert not folder.has(ADA)
    assert not folder.touch(ADA)
    write(folder, ADA, durable=True)
    write(folder, ADA)
    assert folder.touch(ADA)
    for again in (folder, open_folder(tmp_path)):
        assert again.has(ADA)
        assert read(again, ADA) == contents_of(ADA)
    assert files_in(tmp_path) == [path_of(tmp_path, ADA)]


def test_others_find_nothing(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    write(folder, ADA)
    for other in (id_of("eve", "text"), id_of("ada", "text", conversation="another"), id_of("ada", "text", 1)):
        assert not folder.has(other)
        assert read(folder, other) is None


def test_only_the_services_user_can_enter(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        write(open_folder(tmp_path / "made"), ADA)
    finally:
        os.umask(before)
    path = path_of(tmp_path / "made", ADA)
    assert path.stat().st_mode & 0o777 == 0o600
    for parent in list(path.parents)[:4]:
        assert parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b""), lambda path: path.symlink_to("/proc")])
def test_a_folder_that_can_not_be_used_is_named(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "pages")
    with pytest.raises(MemoryFolderError, match=f"memory.folder {tmp_path}/pages: .*; it must be a folder to write to"):
        open_folder(tmp_path / "pages")


# --- damage -------------------------------------------------------------------------------------------------------


def refused(folder: PageFolder, page_id: PageId) -> None:
    """The page does not open, its file is gone, and a new one takes its place."""
    with pytest.raises(PageFileError):
        read(folder, page_id)
    assert not os.path.lexists(path_of(folder.root, page_id))
    assert read(folder, page_id) is None
    write(folder, page_id)
    assert read(folder, page_id) == contents_of(page_id)


def test_ten_thousand_damages_and_not_one_wrong_page(tmp_path: Path) -> None:
    """Flipped, cut, lengthened, zeroed, overwritten by another of one's own pages or by another user's."""
    folder = open_folder(tmp_path)
    others = [id_of("eve", "text"), id_of("ada", "text", 1), id_of("ada", "text", conversation="another")]
    for page_id in (ADA, *others):
        write(folder, page_id)
    path, rng = path_of(tmp_path, ADA), Random(5)
    good = path.read_bytes()
    foreign = [path_of(tmp_path, other).read_bytes() for other in others]
    right = contents_of(ADA)
    for number in range(10_000):
        kind = number % 6
        if kind < 2:
            damaged = bytearray(good)
            damaged[rng.randrange(HEADER_BYTES if kind else FILE_BYTES)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            damaged = bytearray(good[: rng.randrange(FILE_BYTES)])
        elif kind == 3:
            damaged = bytearray(good + bytes(rng.randrange(1, 50)))
        elif kind == 4:
            begin = rng.randrange(FILE_BYTES)
            damaged = bytearray(good)
            damaged[begin:] = bytes(FILE_BYTES - begin)
        else:
            cut = rng.choice([0, 116, HEADER_BYTES])
            damaged = bytearray(good[:cut] + rng.choice(foreign)[cut:])
        path.write_bytes(damaged)
        try:
            assert read(folder, ADA) == right
            assert damaged == good
        except OtherFormatError:
            assert damaged[:7] == good[:7]
            assert path.exists()
        except PageFileError:
            assert damaged != good
            assert not path.exists()


def test_pages_swapped_on_disk_are_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    for other in (
        id_of("eve", "text"),
        id_of("ada", "text", conversation="another"),
        id_of("ada", "text", 1),
        id_of("ada", "text", fingerprint=key_of("another model")),
    ):
        write(folder, ADA)
        write(folder, other)
        path_of(tmp_path, other).replace(path_of(tmp_path, ADA))
        refused(folder, ADA)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    write(folder, ADA)
    path, elsewhere = path_of(tmp_path, ADA), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    refused(folder, ADA)
    assert elsewhere.stat().st_size == FILE_BYTES, "the link was removed, and not what it pointed to"
    path.unlink()
    os.mkfifo(path)
    refused(folder, ADA)


def test_folders_that_are_links_are_not_followed(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "pages")
    write(folder, ADA)
    owner = path_of(tmp_path / "pages", ADA).parents[2]
    owner.rename(tmp_path / "elsewhere")
    owner.symlink_to(tmp_path / "elsewhere")
    before = files_in(tmp_path / "elsewhere")
    for call in (lambda: read(folder, ADA), lambda: write(folder, id_of("ada", "other")), lambda: folder.has(ADA)):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels of symbolic links"):
            call()
    assert files_in(tmp_path / "elsewhere") == before


def test_no_file_stays_open(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for page_id in (ADA, id_of("ada", "text", 1)):
        folder.has(page_id)
        write(folder, page_id)
        write(folder, page_id)
        read(folder, page_id)
    path_of(tmp_path, ADA).write_bytes(b"damaged")
    with pytest.raises(PageFileError):
        read(folder, ADA)
    folder.use(ADA.owner.hex())
    folder.forget(ADA.owner.hex(), bytes(16))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_another_format_is_left_alone(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    write(folder, ADA)
    path = path_of(tmp_path, ADA)
    data = bytearray(path.read_bytes())
    data[7] = 2
    path.write_bytes(data)
    with pytest.raises(OtherFormatError):
        read(folder, ADA)
    assert path.read_bytes() == data


@pytest.mark.parametrize("owner", ["", "..", "../" + "a" * 29, "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"])
def test_no_owner_leads_elsewhere(owner: str, tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    for call in (folder.forget, folder.use):
        with pytest.raises(ValueError, match="owner: not 32 hex digits"):
            call(owner)


# --- disks that fail ------------------------------------------------------------------------------------------------


def failing(error: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_a_write_that_fails_leaves_nothing_behind(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path)
    old = id_of("ada", "old")
    write(folder, old)
    monkeypatch.setattr(disk, "write_all", failing(error))
    with pytest.raises(OSError, match=os.strerror(error)):
        write(folder, ADA)
    full = error in (errno.ENOSPC, errno.EDQUOT)
    assert folder.has(old) != full, "a full disk, and no other, makes the oldest page go"
    assert files_in(tmp_path) == ([] if full else [path_of(tmp_path, old)])
    monkeypatch.undo()
    write(folder, ADA)
    assert read(folder, ADA) == contents_of(ADA)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """In a mount namespace of its own, on a disk of 64 KiB."""
    script = (
        f"mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -m tests.app.memory.full_disk {tmp_path}"
    )
    ran = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in ran.stderr:
        pytest.skip(f"no mount namespaces here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("full, and went on")


def test_a_read_that_fails_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path)
    write(folder, ADA)
    monkeypatch.setattr(disk, "read_into", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        read(folder, ADA)
    monkeypatch.undo()
    assert read(folder, ADA) == contents_of(ADA)


def test_a_vanished_mount_is_not_written_below(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "mount")
    write(folder, ADA)
    (tmp_path / "mount").rename(tmp_path / "away")
    (tmp_path / "mount").mkdir()  # what is left is the empty folder that it was mounted on
    for call in (lambda: write(folder, ADA), lambda: read(folder, ADA), lambda: folder.has(ADA), folder.sweep):
        with pytest.raises(FileNotFoundError):
            call()
    assert files_in(tmp_path / "mount") == []
    (tmp_path / "mount").rmdir()
    (tmp_path / "away").rename(tmp_path / "mount")
    assert read(folder, ADA) == contents_of(ADA)


def test_a_read_only_folder_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path)
    write(folder, ADA)
    monkeypatch.setattr(os, "utime", failing(errno.EROFS))
    assert read(folder, ADA) == contents_of(ADA)


STEPS = ("after open", "half written", "after write", "before rename", "after rename", "after utime")


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_killed_in_each_step_leaves_a_page_or_none(step: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-m", "tests.app.memory.killed_writer", str(tmp_path), step], check=False)
    assert ran.returncode == -signal.SIGKILL
    folder = open_folder(tmp_path)
    whole = step in ("after rename", "after utime")
    assert read(folder, ADA) == (contents_of(ADA) if whole else None)
    left = [path for path in files_in(tmp_path) if path.name.startswith(".tmp-")]
    assert len(left) == (0 if whole else 1)
    assert folder.touch(ADA) == whole
    write(folder, ADA)
    assert read(folder, ADA) == contents_of(ADA)
    for path in left:
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    folder.sweep()
    assert files_in(tmp_path) == [path_of(tmp_path, ADA)]


def test_two_writers_of_one_page_and_a_reader(tmp_path: Path) -> None:
    """They replace each other's files, remove them, and nobody ever reads anything but the page."""
    folders = [open_folder(tmp_path) for _ in range(3)]
    until_s = time.monotonic() + 1
    wrong: list[object] = []

    def go(number: int) -> None:
        while time.monotonic() < until_s:
            if number < 2:
                write(folders[number], ADA)
                path_of(tmp_path, ADA).unlink(missing_ok=True)
            elif (found := read(folders[number], ADA)) not in (None, contents_of(ADA)):
                wrong.append(found)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- quotas, lifetime, forgetting -------------------------------------------------------------------------------------


class Clock:
    """Seconds, set by the test."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_over_the_quota_the_oldest_text_goes_and_its_end_before_its_beginning(tmp_path: Path) -> None:
    clock = Clock()
    folder = open_folder(tmp_path, most_bytes_per_user=10 * FILE_BYTES, now_s=clock)
    old = [id_of("ada", "old", index) for index in range(6)]
    new = [id_of("ada", "new", index) for index in range(6)]
    other = id_of("eve", "text")
    write(folder, other)
    for page_id in old:
        write(folder, page_id)
    clock.now_s += 1000
    for page_id in new:
        write(folder, page_id)
    assert [folder.has(page_id) for page_id in old] == [True] * 4 + [False] * 2
    assert all(folder.has(page_id) for page_id in [*new, other])
    clock.now_s += 1000
    for page_id in old[:4]:
        read(folder, page_id)  # used again: now the others are older
    write(folder, id_of("ada", "third"))
    assert all(folder.has(page_id) for page_id in old[:4])
    assert [folder.has(page_id) for page_id in new] == [True] * 5 + [False]
    assert folder.use(grant_for("ada").owner) == FolderUse(10, 10 * FILE_BYTES)


def test_a_user_may_have_a_quota_of_its_own(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, most_bytes_per_user=3 * FILE_BYTES)
    page, file = memoryview(bytearray(pages.PAGE_BYTES)), memoryview(bytearray(FILE_BYTES))
    for index in range(6):
        folder.write(id_of("ada", "text", index), page, file, quota_bytes=6 * FILE_BYTES)
        folder.write(id_of("eve", "text", index), page, file, quota_bytes=2 * FILE_BYTES)
    assert [folder.use(grant_for(user).owner).pages for user in ("ada", "eve")] == [6, 2]
    with pytest.raises(QuotaError, match="the user's quota is less than one page"):
        folder.write(id_of("bob", "text"), page, file, quota_bytes=FILE_BYTES - 1)


def test_all_users_together_keep_to_the_folders_quota(tmp_path: Path) -> None:
    clock = Clock()
    folder = open_folder(tmp_path, most_bytes=20 * FILE_BYTES, now_s=clock)
    for number in range(60):
        clock.now_s += 1000
        write(folder, id_of(f"user {number % 7}", f"text {number}"))
        assert len(files_in(tmp_path)) <= 20
    assert [folder.has(id_of(f"user {number % 7}", f"text {number}")) for number in range(41, 60)] == [True] * 19


def test_pages_that_other_workers_saved_count_too(tmp_path: Path) -> None:
    one, other = (open_folder(tmp_path, most_bytes_per_user=10 * FILE_BYTES) for _ in range(2))
    write(one, id_of("ada", "first"))
    for index in range(9):
        write(other, id_of("ada", "text", index))
    for index in range(20):
        write(one, id_of("ada", "more", index))
    assert len(files_in(tmp_path)) <= 19, "it counts anew when its own count says that the quota is reached"


def test_a_page_larger_than_the_quota_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuotaError, match="the user's quota is less than one page"):
        write(open_folder(tmp_path, most_bytes_per_user=FILE_BYTES - 1), ADA)
    assert files_in(tmp_path) == []
    with pytest.raises(MemoryFolderError, match=f"memory.bytes: {FILE_BYTES - 1} is less than one page"):
        open_folder(tmp_path, most_bytes=FILE_BYTES - 1)


def test_what_all_files_take_is_known_without_asking_the_disk(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    assert folder.known_bytes is None
    write(folder, ADA)
    write(folder, id_of("eve", "text"))
    assert folder.known_bytes == 2 * FILE_BYTES
    another = open_folder(tmp_path)
    another.sweep()
    assert another.known_bytes == 2 * FILE_BYTES
    folder.forget(ADA.owner.hex())
    assert folder.known_bytes == FILE_BYTES
    another.sweep()
    assert another.known_bytes == FILE_BYTES


def test_pages_past_their_lifetime_are_swept_of_other_models_too(tmp_path: Path) -> None:
    clock = Clock()
    folder = open_folder(tmp_path, ttl_s=5000.0, now_s=clock)
    old = [id_of("ada", "text"), id_of("eve", "text", fingerprint=key_of("another model"))]
    used, new = id_of("ada", "used"), id_of("ada", "new")
    for page_id in (*old, used):
        write(folder, page_id)
    clock.now_s += 4000
    write(folder, new)
    read(folder, used)
    clock.now_s += 2000
    assert folder.sweep() == 2
    assert files_in(tmp_path) == sorted(path_of(tmp_path, page_id) for page_id in (used, new))
    assert not path_of(tmp_path, old[1]).parents[2].exists(), "empty folders go too"


@pytest.mark.parametrize("off_s", [-31_536_000.0, 31_536_000.0])
def test_a_clock_that_is_a_year_off_gives_no_wrong_page(off_s: float, tmp_path: Path) -> None:
    clock = Clock()
    folder = open_folder(tmp_path, ttl_s=5000.0, most_bytes=3 * FILE_BYTES, now_s=clock)
    pages = [id_of("ada", "text", index) for index in range(6)]
    for page_id in pages[:3]:
        write(folder, page_id)
    clock.now_s += off_s
    folder.sweep()
    for page_id in pages:
        assert read(folder, page_id) in (None, contents_of(page_id))
        write(folder, page_id)
        assert read(folder, page_id) == contents_of(page_id)
        assert len(files_in(tmp_path)) <= 3


def test_forgetting_a_conversation_and_a_user(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    chat = [id_of("ada", "text", index) for index in range(5)]
    other_chat = id_of("ada", "text", conversation="another")
    other_model = id_of("ada", "text", fingerprint=key_of("another model"))
    other_user = id_of("eve", "text")
    for page_id in (*chat, other_chat, other_model, other_user):
        write(folder, page_id)
    ada = grant_for("ada")
    assert folder.forget(ada.owner, ada.conversation_key_id) == 6
    assert files_in(tmp_path) == sorted(path_of(tmp_path, page_id) for page_id in (other_chat, other_user))
    assert folder.forget(ada.owner) == 1
    assert folder.forget(ada.owner) == 0
    assert files_in(tmp_path) == [path_of(tmp_path, other_user)]
    assert sorted(path.name for path in (tmp_path / "v1").iterdir()) == [grant_for("eve").owner]


def test_a_page_from_before_forgetting_does_not_open_with_the_next_key(tmp_path: Path) -> None:
    """Whoever kept a file and puts it back has nothing: the conversation's key is another one."""
    folder = open_folder(tmp_path)
    write(folder, ADA)
    kept = path_of(tmp_path, ADA).read_bytes()
    folder.forget(ADA.owner.hex())
    renewed = id_of("ada", "text", key=key_of("made after forgetting"))
    write(folder, renewed)
    path_of(tmp_path, renewed).write_bytes(kept)
    refused(folder, renewed)
