import socket

import pytest

from bench.places import reasons_without_places, shown_command, without_places


def test_reasons_have_no_places_and_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    found = without_places(
        "secret-host: /home/alice/models/x.gguf: of alice,\n '/a/b c/d' and http://127.0.0.1:8000/v1/x"
    )
    assert found == "HOST: x.gguf: of USER, 'b c/d' and http://127.0.0.1:8000/v1/x"
    assert len(without_places("x" * 5000)) < 500
    assert reasons_without_places({"a": "/home/alice/log"}) == {"a": "log"}


@pytest.mark.parametrize(
    "written", ["file:///a/b/c.json", "at:/a/b/c.json", "(/a/c.json)", "x=/a/b/c.json", "/a/c.json"]
)
def test_paths_are_found_wherever_they_begin(written: str) -> None:
    found = without_places(written)
    assert "/" not in found
    assert "c.json" in found


def test_relative_paths_and_addresses_are_not_places() -> None:
    assert without_places("bench/results/a.json of https://example.com/a/b") == (
        "bench/results/a.json of https://example.com/a/b"
    )


def test_commands_have_names_and_no_places() -> None:
    words = [
        "redoubt",
        "--data",
        "/home/alice/my data.json",
        "--out=/a/b/c.json",
        "--url",
        "https://chat.example.com/v1",
    ]
    assert shown_command(words) == "redoubt --data 'my data.json' --out=c.json --url https://HOST"
    assert shown_command(["--url", "http://127.0.0.1:8000"]) == "--url http://127.0.0.1:8000"
    assert shown_command(["--url=http://10.0.0.7:8000", "file:///a/b/c"]) == "--url=http://HOST c"
