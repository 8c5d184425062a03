import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from app import guest_components
from app.accounts.key_source import read_kek, write_kek
from app.settings.accounts import AccountsSettings
from app.settings.knobs import SettingsError


def test_a_new_key_is_its_owners_alone_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "kek"
    write_kek(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert read_kek(f"file:{path}") == path.read_bytes()
    assert len(path.read_bytes()) == 32
    with pytest.raises(FileExistsError):
        write_kek(path)


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o620, 0o601])
def test_a_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "kek"
    write_kek(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match=rf"accounts\.key file:{path}: .*mode {mode:03o}.*chmod 400"):
        read_kek(f"file:{path}")


@pytest.mark.parametrize("size", [0, 31, 33, 1000])
def test_a_key_of_another_length_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "kek"
    path.write_bytes(bytes(size))
    path.chmod(0o400)
    with pytest.raises(SettingsError, match="bytes, not 32"):
        read_kek(f"file:{path}")


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"accounts\.key file:.*/nothing: .*No such file"):
        read_kek(f"file:{tmp_path}/nothing")


class Guest(BaseHTTPRequestHandler):
    """A fake Confidential Data Hub with one resource."""

    def do_GET(self) -> None:
        found = self.path == "/cdh/resource/redoubt/keys/kek"
        body = b"k" * 32 if found else b"no such resource"
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with HTTPServer(("127.0.0.1", 0), Guest) as server:
        monkeypatch.setattr(guest_components, "ADDRESS", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("guest")
def test_a_guest_gets_the_key_from_its_resources() -> None:
    assert read_kek("cdh:redoubt/keys/kek") == b"k" * 32
    with pytest.raises(SettingsError, match=r"accounts\.key cdh:redoubt/keys/other: .*404"):
        read_kek("cdh:redoubt/keys/other")


@pytest.mark.parametrize("source", ["", "file:", "cdh:", "env:KEK", "/a/path", "0" * 64])
def test_a_key_in_the_configuration_or_the_environment_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="key"):
        AccountsSettings(database="d", key=source)
