"""What a library that a hostile file has taken over could still do: each is tried in a sealed process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.documents import child
from app.documents.reader import DocumentReader

TRIED = """
import ctypes, errno, os, resource, signal, socket, sys
from app.documents import child, sandbox
path, other = sys.argv[2], int(sys.argv[3])
refused = (errno.EPERM, errno.EACCES)
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

files = {
    "read": lambda: os.open(path, os.O_RDONLY),
    "write": lambda: os.open(path, os.O_WRONLY),
    "make": lambda: os.open(path + "x", os.O_CREAT | os.O_WRONLY),
    "list": lambda: os.listdir(os.path.dirname(path)),
    "unlink": lambda: os.unlink(path),
    "rename": lambda: os.rename(path, path + "x"),
    "link": lambda: os.link(path, path + "x"),
    "symlink": lambda: os.symlink(path, path + "x"),
    "mkdir": lambda: os.mkdir(path + "x"),
    "rmdir": lambda: os.rmdir(os.path.dirname(path) + "/empty"),
}
others = {
    "truncate": lambda: os.truncate(path, 0),
    "chmod": lambda: os.chmod(path, 0),
    "chown": lambda: os.chown(path, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(path),
    "stat": lambda: os.stat(path),
    "chdir": lambda: os.chdir("/"),
    "kill": lambda: os.kill(other, signal.SIGTERM),
    "tgkill": lambda: call(234, other, other, 15),
    "tkill": lambda: call(200, other, 15),
    "pidfd": lambda: os.pidfd_open(other),
    "ptrace": lambda: call(101, 16, other, 0, 0),
    "process_vm_readv": lambda: call(310, other, None, 0, None, 0, 0),
    "prlimit": lambda: resource.prlimit(other, resource.RLIMIT_CPU),
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, other, 19),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "fork": os.fork,
    "socket": socket.socket,
    "pipe": os.pipe,
    "io_uring": lambda: call(425, 1, None),
    "unshare": lambda: call(272, 0x10000000),
    "x32": lambda: call(0x40000000 | 87, path.encode()),
    "mount": lambda: call(165, None, b"/", None, 4096, None),
}
match sys.argv[1]:
    case "sealed":
        child.bound(5, 1 << 30)
        child.seal()
    case "landlock":
        version = sandbox.deny_files()
        if not version:
            sys.exit(77)
        since = {"truncate": 3, "kill": 6, "tgkill": 6, "tkill": 6}
        others = {name: others[name] for name, first in since.items() if first <= version}
    case "filter":
        if not sandbox.deny_system_calls():
            sys.exit(77)
for name, attempt in {**files, **others}.items():
    try:
        attempt()
    except OSError as error:
        if error.errno not in refused:
            print(name, error.errno)
    else:
        print(name, "was done")
print("tried all", len(bytearray(64 << 20)))
sys.stdout.flush()
os.abort()
"""
ANSWER = (
    b'{"kind": "text", "sections": [{"text": "a", "page": null, "mark": ""}], "notes": [], "pages": null, "sealed": %s}'
)


@pytest.mark.parametrize("how", ["sealed", "landlock", "filter"])
def test_a_held_process_reaches_neither_files_nor_processes(how: str, tmp_path: Path) -> None:
    path = tmp_path / "accounts"
    path.write_text("kept")
    path.chmod(0o640)
    (tmp_path / "empty").mkdir()
    with subprocess.Popen(["sleep", "600"]) as other:
        run = subprocess.run(
            [sys.executable, "-c", TRIED, how, path, str(other.pid)], capture_output=True, text=True, check=False
        )
        is_alive = other.poll() is None
        other.kill()
    if run.returncode == 77 or (how == "sealed" and not _has_filters()):
        pytest.skip("this kernel has none")
    assert run.stdout == f"tried all {64 << 20}\n", run.stderr
    assert run.returncode == -signal.SIGABRT  # its own end is still told
    assert is_alive
    assert {each.name for each in tmp_path.iterdir()} == {"accounts", "empty"}
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("kept", 0o640)


@pytest.mark.parametrize(("version", "has_filter", "is_sealed"), [(7, False, True), (5, False, False), (0, True, True)])
def test_landlock_alone_seals_a_process_only_if_it_denies_signals(
    monkeypatch: pytest.MonkeyPatch, version: int, has_filter: bool, is_sealed: bool
) -> None:
    monkeypatch.setattr(child, "deny_files", lambda: version)
    monkeypatch.setattr(child, "deny_system_calls", lambda: has_filter)
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    assert child.seal() == is_sealed


def _has_filters() -> bool:
    program = "import sys; from app.documents.sandbox import deny_system_calls; sys.exit(not deny_system_calls())"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_the_log_says_once_if_the_kernel_can_hold_no_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, says = DocumentReader(), b"true"

    async def answer(self: DocumentReader, name: str, data: bytes) -> bytes:
        return ANSWER % says

    async def load() -> tuple[str, bytes]:
        return "a.txt", b"a"

    monkeypatch.setattr(DocumentReader, "_answer", answer)
    assert (await reader.read(load)).text == "a"
    assert not caplog.records
    says = b"false"
    assert [(await reader.read(load)).text for _ in range(2)] == ["a", "a"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
