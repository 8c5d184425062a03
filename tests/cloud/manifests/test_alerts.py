"""The alert rules under promtool, Prometheus' own tool: they are well formed, fire when they should, and only then."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cloud.manifests.kubectl import ROOT
from tests.conftest import missing

ALERTS = ROOT / "kuberay" / "components" / "monitoring" / "alerts.yaml"
SPECIFICATION: dict[str, Any] = yaml.safe_load(ALERTS.read_text())["spec"]
STALE, GONE = (f'redoubt_model_workers{{model="m",state="{state}"}}' for state in ("stale", "gone"))
OK, NOT_FOUND, BUSY, DOWN = (f'redoubt_http_requests_total{{status="{status}"}}' for status in (200, 404, 429, 503))

# Of each alert: series with a value a minute, when it fires (minutes), and series with which it does not.
CASES: dict[str, tuple[dict[str, str], int, dict[str, str]]] = {
    "RedoubtModelDown": (
        {'redoubt_model_up{model="m"}': "1 1 0 0 1 0 0 1 0 0 1 0 0"},  # its workers crash again and again
        10,
        {  # a moment; and what another ingress, seen by way of another pod, has not noticed yet
            'redoubt_model_up{model="m"}': "1x8 0 1x20",
            'redoubt_model_up{model="n",pod="a"}': "0x20",
            'redoubt_model_up{model="n",pod="b"}': "1x20",
        },
    ),
    "RedoubtUnseen": ({'up{job="redoubt"}': "0x20"}, 3, {'redoubt_model_up{model="m"}': "0x20"}),
    "RedoubtWorkerSilent": (
        {STALE: "0 1 1 0x20", GONE: "0 0 0 1x20"},  # Serve replaces it after a minute and a half
        2,
        {STALE: "0x20", GONE: "1x20"},  # a worker that was removed stays in the table for a while
    ),
    "RedoubtWorkersLost": (
        {'redoubt_requests_resumed_total{ingress="i",model="m",loss="lost"}': "0 0 3x20"},
        5,
        {'redoubt_requests_resumed_total{ingress="i",model="m",loss="moved"}': "0 0 3x20"},
    ),
    "RedoubtRefusesRequests": ({BUSY: "0+10x20", OK: "0+90x20"}, 15, {BUSY: "0+3x20", OK: "0+97x20"}),
    "RedoubtAnswersWithErrors": ({DOWN: "0+2x20", OK: "0+98x20"}, 15, {NOT_FOUND: "0+9x20", OK: "0+91x20"}),
    "RedoubtFirstTokenLate": (
        {
            'redoubt_time_to_first_token_seconds_bucket{model="m",le="10"}': "0+90x40",
            'redoubt_time_to_first_token_seconds_bucket{model="m",le="30"}': "0+100x40",
            'redoubt_time_to_first_token_seconds_bucket{model="m",le="+Inf"}': "0+100x40",
        },
        30,
        {
            'redoubt_time_to_first_token_seconds_bucket{model="m",le="10"}': "0+99x40",
            'redoubt_time_to_first_token_seconds_bucket{model="m",le="+Inf"}': "0+100x40",
        },
    ),
    "RedoubtQueuesLong": (
        {'redoubt_worker_requests_waiting{worker="w"}': "9x20", 'redoubt_worker_requests_running{worker="w"}': "8x20"},
        15,
        # The same worker, seen by two ingresses.
        {
            'redoubt_worker_requests_waiting{worker="w",pod="a"}': "5x20",
            'redoubt_worker_requests_waiting{worker="w",pod="b"}': "5x20",
            'redoubt_worker_requests_running{worker="w"}': "8x20",
        },
    ),
    "RedoubtCacheTooSmall": (
        {'redoubt_worker_preemptions_total{worker="w"}': "0+12x40"},
        30,
        {'redoubt_worker_preemptions_total{worker="w"}': "0+3x40"},
    ),
    "RedoubtAccessLogIncomplete": (
        {'redoubt_access_log_dropped_total{ingress="i"}': "0 0 5x20"},
        5,
        {'redoubt_access_log_dropped_total{ingress="i"}': "5x20"},
    ),
}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        missing("promtool is missing: run `make test-tools`")
    return found


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """As a file for Prometheus itself, as docs/operations.md makes it."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(SPECIFICATION))
    return path


def test_every_alert_has_a_case() -> None:
    assert [rule["alert"] for group in SPECIFICATION["groups"] for rule in group["rules"]] == list(CASES)


def test_they_are_well_formed(promtool: str, rules: Path) -> None:
    result = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(CASES)} rules found" in result.stdout


def fires(promtool: str, rules: Path, alert: str, series: dict[str, str], minutes: int) -> bool:
    """Whether the alert fires then. Raises AssertionError if promtool says anything else."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": alert, "exp_alerts": []}],
    }
    path = rules.with_name("case.yaml")
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    result = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    said = result.stdout + result.stderr
    if result.returncode == 0:
        assert "SUCCESS" in said
        return False
    assert f"alertname: {alert}, time: {minutes}m" in said, said
    assert f'alertname="{alert}"' in said, said
    return True


@pytest.mark.parametrize("alert", CASES)
def test_it_fires_when_it_should_and_only_then(promtool: str, rules: Path, alert: str) -> None:
    bad, minutes, good = CASES[alert]
    assert fires(promtool, rules, alert, bad, minutes)
    assert not fires(promtool, rules, alert, good, minutes)
