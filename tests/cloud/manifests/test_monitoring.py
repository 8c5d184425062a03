"""The dashboard and the alerts name series and labels that the service has."""

import json
import re
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.interface.http.metrics import Metrics
from tests.app.service import WORKER
from tests.cloud.manifests.kubectl import ROOT, Document, find, render
from tests.cloud.manifests.operator_pods import pods

FOLDER = ROOT / "kuberay" / "overlays" / "production"
PROMETHEUS_OWN = {"le", "pod", "namespace", "container", "job", "instance"}
"""Labels of histograms, and those that Prometheus adds to what it scrapes."""


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """The labels of each series of the service, by the name that Prometheus stores it under."""
    metrics = Metrics(lambda: [WORKER])
    metrics.answered("GET", "/health", 200)
    metrics.counting("m")
    metrics.ended("/health", 200, 0.1)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def unknown(expression: str, series: dict[str, set[str]]) -> list[str]:
    """What an expression names that the service does not have. Raises ValueError if it is no PromQL."""
    text = re.sub(r"\$__rate_interval", "5m", expression)
    promql_parser.parse(text)
    lines = []
    names = set(re.findall(r"\bredoubt_\w+", text))
    lines += [f"there is no series {name}" for name in sorted(names - series.keys())]
    labels = {label for name in names & series.keys() for label in series[name]} | PROMETHEUS_OWN
    used = {
        each.strip() for group in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", text) for each in group.split(",")
    }
    used |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", text))
    lines += [f"no series of it has the label {label}" for label in sorted(used - labels)]
    return lines


def dashboard() -> Any:
    return json.loads(find(render(FOLDER), "ConfigMap")["data"]["dashboard.json"])


def alerts() -> list[Any]:
    return [rule for group in find(render(FOLDER), "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]


def test_each_panel_shows_series_that_exist(series: dict[str, set[str]]) -> None:
    panels = dashboard()["panels"]
    found = {panel["title"]: [unknown(target["expr"], series) for target in panel["targets"]] for panel in panels}
    assert {title: lines for title, lines in found.items() if any(lines)} == {}
    for panel in panels:
        for target in panel["targets"]:
            labels = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert all(re.search(rf"by \([^)]*\b{label}\b", target["expr"]) for label in labels), panel["title"]


def test_each_alert_is_about_series_that_exist(series: dict[str, set[str]]) -> None:
    assert {rule["alert"]: unknown(rule["expr"], series) for rule in alerts()} == {
        rule["alert"]: [] for rule in alerts()
    }
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()
        labels = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        assert all(re.search(rf"by \([^)]*\b{label}\b", rule["expr"]) for label in labels), rule["alert"]


def test_what_two_pods_say_is_not_counted_twice() -> None:
    """Two pods may answer with the same ingress' counts, and each ingress reports every worker and model.

    So series of workers and models are first reduced to the maximum of each, and an ingress' own to one of each
    ingress, unless they are shown as shares or quantiles, which two of a kind do not change.
    """
    shown = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    for expression in (*shown, *(rule["expr"] for rule in alerts())):
        for at in re.finditer(r"redoubt_(worker|model)_\w+", expression):
            before = expression[: at.start()]
            reduced = (
                r"max by \((model, )?worker\) \((rate\()?$"
                if at[1] == "worker"
                else r"max by \(model[^)]*\) \((avg_over_time\()?$"
            )
            assert re.search(reduced, before) or before.endswith("absent("), expression
        if re.search(r"redoubt_(?!worker|model)", expression):
            is_share = "histogram_quantile" in expression or " / " in expression.replace("\n", " ")
            assert is_share or re.search(r"max by \(ingress[^)]*\) \(increase\($", expression.partition("redoubt_")[0])


def test_every_panel_has_its_place() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("redoubt_workers", "there is no series redoubt_workers"),
        ("rate(redoubt_http_requests[5m])", "there is no series redoubt_http_requests"),
        ("sum by (user) (redoubt_worker_up)", "no series of it has the label user"),
        ('redoubt_http_requests_total{code="429"}', "no series of it has the label code"),
    ],
)
def test_an_expression_is_refused(series: dict[str, set[str]], expression: str, expected: str) -> None:
    assert unknown(expression, series) == [expected]


def test_what_is_no_promql_is_refused(series: dict[str, set[str]]) -> None:
    with pytest.raises(ValueError, match=r"unexpected|invalid|expected"):
        unknown("sum by (worker) redoubt_worker_up)", series)


def test_monitors_find_their_ports(full: Document) -> None:
    made = pods(full)
    for monitor in (each for each in render(FOLDER) if each["kind"] == "PodMonitor"):
        selected = {
            name: {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
            for name, pod in made.items()
            if monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        }
        assert selected.keys() == (
            {"head", "numa-node"} if monitor["metadata"]["name"] == "redoubt-ray" else {"numa-node"}
        )
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert all(endpoint["port"] in ports for ports in selected.values())
