"""Keys from files, and from a Confidential Data Hub as the guest components serve it."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from app.sealing.image import SealedModelError
from app.sealing.keys import make_key_file, read_key, read_key_file
from tests.app.sealing.conftest import KEY
from tests.service.running import free_port

ANSWERS = {
    "/cdh/resource/redoubt/model/small": (200, KEY),
    "/cdh/resource/redoubt/model/short": (200, KEY[:-1]),
    "/cdh/resource/redoubt/model/long": (200, KEY + b"\n"),
    "/cdh/resource/redoubt/model/elsewhere": (302, b""),
}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, content = ANSWERS.get(self.path, (404, KEY))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/cdh/resource/redoubt/model/small")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_key_of_the_hub(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    assert read_key("kbs:///redoubt/model/small", hub) == KEY


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", "/none answered 404: does the key broker have this resource, and does its policy release it"),
        ("elsewhere", "/elsewhere answered 302"),
        ("short", "31 bytes are no key: it has 32"),
        ("long", "more than 32 bytes are no key"),
    ],
)
def test_what_the_hub_answers_instead_of_a_key(hub: str, name: str, reason: str) -> None:
    with pytest.raises(SealedModelError, match=f"^kbs:///redoubt/model/{name}: .*{reason}") as caught:
        read_key(f"kbs:///redoubt/model/{name}", hub)
    assert repr(KEY[:8])[2:-1] not in str(caught.value)


def test_no_hub() -> None:
    hub = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SealedModelError, match=rf"^kbs:///a/b/c: no answer from {hub}/cdh/resource/a/b/c \(.*rest_api"):
        read_key("kbs:///a/b/c", hub)


def test_a_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a key"
    assert make_key_file(path) == read_key_file(path) == read_key(f"file://{tmp_path}/a%20key")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(SealedModelError, match=f"^{path}: is there already"):
        make_key_file(path)
    for wrong in (b"", KEY[:-1], KEY + b"\n", bytes(1000)):
        path.write_bytes(wrong)
        with pytest.raises(SealedModelError, match=f"^{path}: .* bytes are no key"):
            read_key_file(path)
    path.unlink()
    with pytest.raises(SealedModelError, match=f"^{path}: No such file"):
        read_key_file(path)
    with pytest.raises(SealedModelError, match="No such file"):
        make_key_file(tmp_path / "no folder" / "key")


@pytest.mark.parametrize(
    "uri", ["", "key", "/key", "file://host/key", "kbs://host/a/b/c", "http://127.0.0.1/", "kbs:///"]
)
def test_what_is_no_place_of_a_key(uri: str) -> None:
    with pytest.raises(SealedModelError, match="is neither file:///PATH nor kbs:///REPOSITORY/TYPE/TAG"):
        read_key(uri)
