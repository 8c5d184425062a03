import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.launch.output import as_json
from tests.app.tiny_model import write_model
from tests.service.operator import redoubt
from tests.service.running import write_config

NOW = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
TIME = "2026-11-27 07:00:00,123"
PROGRAM = """
import logging, os, subprocess, sys
from app.launch.output import complain, print_json, say
print_json()
say("Redoubt is ready")
complain("It failed:\\n  why")
logging.getLogger("app.launch.front").warning("HAProxy has %s", "ended")
subprocess.run([sys.executable, "-c", "from app.launch.output import say; print('Starting Ray ...'); say('a\\\\nb')"])
subprocess.run(["sh", "-c", "echo '\\x1b[33mcolored\\x1b[0m' >&2; echo; printf '\\\\377 no end'"])
subprocess.Popen(["cat"], stdin=subprocess.PIPE)
raise SystemExit("redoubt: the last words")
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"\x1b[36m(ServeController pid=7)\x1b[0m WARNING {TIME} controller 7 -- It -- waits",
            {
                **{"actor_name": "ServeController", "process": 7, "levelname": "WARNING", "asctime": TIME},
                **{"component_name": "controller", "component_id": "7", "message": "It -- waits"},
            },
        ),
        (
            f"INFO {TIME} redoubt_Ingress k2 1b-c -- GET / 200 1.0ms",
            {
                **{"levelname": "INFO", "asctime": TIME, "component_name": "redoubt_Ingress", "component_id": "k2"},
                "message": "GET / 200 1.0ms",
            },
        ),
        (
            f"{TIME}\tERROR worker.py:12 -- lost",
            {"levelname": "ERROR", "asctime": TIME, "filename": "worker.py", "lineno": 12, "message": "lost"},
        ),
        (
            f'(pid=7) {{"asctime": "{TIME}", "levelname": "INFO", "message": "m", "more": [1]}}',
            {"process": 7, "asctime": TIME, "levelname": "INFO", "message": "m", "more": [1]},
        ),
    ],
)
def test_what_a_log_line_says_is_kept(text: str, expected: dict[str, Any]) -> None:
    assert json.loads(as_json(text, "ERROR")) == expected


@pytest.mark.parametrize("text", ["(raylet) It is gone", "{not JSON", '{"a": 1}', "[1]", "17"])
def test_any_other_line_is_a_message(text: str) -> None:
    line = json.loads(as_json(text, "ERROR"))
    assert re.fullmatch(NOW, line.pop("asctime"))
    assert line == {"levelname": "ERROR", "message": text}


def test_everything_that_a_process_and_its_children_print_is_json() -> None:
    """Also its last words; and a child that holds the pipe open keeps nobody from the end."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1, done.stderr
    out, errors = (
        [(line["levelname"], line["message"]) for line in map(json.loads, stream.splitlines())]
        for stream in (done.stdout, done.stderr)
    )
    assert out == [
        ("INFO", text) for text in ("Redoubt is ready", "Starting Ray ...", "a\nb", "\N{REPLACEMENT CHARACTER} no end")
    ]
    assert errors == [
        ("ERROR", "It failed:\n  why"),
        ("WARNING", "HAProxy has ended"),
        ("ERROR", "colored"),
        ("ERROR", "redoubt: the last words"),
    ]


def test_a_refused_start_is_json_if_the_configuration_says_so(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    config = write_config(tmp_path / "service.yaml", {}, logging_config={"encoding": "JSON"})
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = redoubt("serve", "--config", str(config), "--model", str(model), "--port", port)
    assert done.returncode == 2
    assert not done.stdout
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["levelname"] == "ERROR"
    assert "Address already in use" in line["message"]
