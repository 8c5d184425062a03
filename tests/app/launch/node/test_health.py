import http.client
from collections.abc import Iterator
from contextlib import closing

import pytest

from app.launch.node.health import Health, HealthServer


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def port(health: Health) -> Iterator[int]:
    server = HealthServer(health, 0)
    yield server.port
    server.close()


def get(port: int, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_it_is_alive_and_not_ready_until_it_says_so(health: Health, port: int) -> None:
    assert get(port, "/healthz")[0] == 200
    assert get(port, "/readyz") == (503, "The node is starting.\n")
    health.set("There is no model /models/x.")
    assert get(port, "/readyz") == (503, "There is no model /models/x.\n")
    health.set(None)
    assert get(port, "/readyz") == (200, "Ready.\n")
    assert get(port, "/metrics")[0] == 404


def test_each_change_is_one_line_of_the_log(health: Health, capsys: pytest.CaptureFixture[str]) -> None:
    for reason in ("Ray is starting.", "Ray is starting.", None, None):
        health.set(reason)
    assert capsys.readouterr().out.splitlines() == ["redoubt node: Ray is starting.", "redoubt node: Ready."]
