"""The playground's address is told when it can be reached."""

import socket

import pytest
import uvicorn

from app.playground import program


def test_who_reads_the_address_can_connect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "application", lambda url, host: None)
    connected = []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        """A server that has not begun yet, however slow it is."""
        address = capsys.readouterr().out.rsplit("http://", 1)[1].strip()
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=5):
            connected.append(address)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    program.serve("http://127.0.0.1:9", "127.0.0.1", 0)
    assert len(connected) == 1
