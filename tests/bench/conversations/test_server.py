"""Servers as processes: small ones that list a model, die, or do not want to end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.conversations.fleet import Fleet, RunningService, Target, fit_together
from bench.conversations.server import END_SIGNALS, Launch, Server, ServerError, undisturbed
from bench.processes import command_line, free_port, is_running

SERVER = """
import http.server, json, signal, sys
from bench.peers.http_server import announce
if sys.argv[2] == "dead":
    sys.exit("no model there")
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "model of " + self.headers.get("Authorization", "nobody")}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
announce(build="AVX2")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(kind: str, folder: Path, *, needed_bytes: int = 0) -> Launch:
    port = free_port()
    return Launch(
        name=kind,
        version="1",
        settings="none",
        command=(sys.executable, "-c", SERVER, str(port), kind),
        folder=Path(__file__).parents[3],
        log=folder / f"{kind}.log",
        port=port,
        environment=dict(os.environ),
        may_be_stopped=True,
        needed_bytes=needed_bytes,
    )


def state(server: Server) -> str:
    assert server._process is not None
    return Path(f"/proc/{server._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_starts_rests_and_ends(tmp_path: Path) -> None:
    server = Server(launch("good", tmp_path))
    try:
        server.start()
        assert server.models == ("model of nobody",)
        assert server.about()["build"] == "AVX2"
        assert server.cpu_s() > 0
        server.rest()
        deadline_s = time.monotonic() + 60
        while state(server) != "T":
            assert time.monotonic() < deadline_s
        with server.turn():
            assert RunningService(server.url).models == ("model of nobody",)
    finally:
        server.end()
    assert not server.runs
    with pytest.raises(ServerError, match="lists no model"):
        RunningService(server.url)


def test_the_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(launch("good", tmp_path))
    try:
        server.start()
        monkeypatch.setenv("REDOUBT_API_KEY", "secret")
        assert RunningService(server.url + "/").models == ("model of Bearer secret",)
    finally:
        server.end()


def test_one_that_ignores_the_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.conversations.server.END_TIMEOUT_S", 0.1)
    server = Server(launch("stubborn", tmp_path))
    server.start()
    assert server._process is not None
    pid = server._process.pid
    server.end()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("together", [True, False])
def test_a_fleet_goes_on_without_those_that_do_not_start(tmp_path: Path, together: bool) -> None:
    warm: list[str] = []
    launches = [launch("good", tmp_path), launch("dead", tmp_path), launch("large", tmp_path, needed_bytes=1 << 60)]
    assert not fit_together(launches)

    def warm_up(target: Target) -> None:
        warm.append(target.name)

    fleet = Fleet(launches, warm_up, together=together)
    with fleet.running():
        for number in range(2):
            for name in fleet.order(number):
                with fleet.turn(name) as server:
                    assert (server is None) == (name != "good")
        assert fleet.names == ["good"]
        assert "no model there" in fleet.missing["dead"]
        assert "GB of memory" in fleet.missing["large"]
        assert fleet.others_cpu_s("good") == 0
    assert warm == (["good"] if together else ["good", "good"])
    assert not fleet._servers["good"].runs


def test_a_server_that_fails_its_warm_up_is_missing(tmp_path: Path) -> None:
    def warm_up(target: Target) -> None:
        raise RuntimeError("requests fail: status 400")

    with Fleet([launch("good", tmp_path)], warm_up, together=True).running() as fleet:
        assert fleet.missing == {"good": "requests fail: status 400"}


def test_no_signal_disturbs_the_end() -> None:
    before = [signal.getsignal(number) for number in END_SIGNALS]
    with undisturbed():
        for number in END_SIGNALS:
            os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in END_SIGNALS] == before


def test_a_server_gets_its_signal_when_the_bench_is_killed(tmp_path: Path) -> None:
    script = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    server = ("setpriv", "--pdeathsig", "TERM", sys.executable, "-c", SERVER, str(free_port()), "good")
    bench = subprocess.Popen(
        [sys.executable, "-c", script, *server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert bench.stdin is not None
    assert bench.stdout is not None
    pid = int(bench.stdout.readline())
    deadline_s = time.monotonic() + 60
    while "setpriv" in command_line(pid):
        assert time.monotonic() < deadline_s
    bench.kill()
    bench.wait()
    bench.stdin.close()
    bench.stdout.close()
    while is_running(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_one_that_fails_later_is_ended_and_the_result_still_has_it(tmp_path: Path) -> None:
    with Fleet([launch("good", tmp_path)], lambda _: None, together=True).running() as fleet:
        with fleet.turn("good") as server, fleet.share_of_others("good") as cores:
            assert server is not None
            fleet.fails("good", "round 2: the client ended")
        assert cores() == 0
        assert fleet.names == []
        assert fleet.about()["good"]["build"] == "AVX2"
        assert not fleet._servers["good"].runs
        with fleet.turn("good") as server:
            assert server is None
