from copy import deepcopy
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.launch.measured_config import SERVE_CONFIG, MeasuredConfig
from app.settings.knobs import SettingsError

CONFIGURATION: dict[str, Any] = {
    "proxy_location": "EveryNode",
    "http_options": {"host": "127.0.0.1", "port": 8000},
    "applications": [
        {
            "name": "redoubt",
            "route_prefix": "/",
            "import_path": "app.deploy:build",
            "args": {
                "model": {"folder": "/models/small"},
                "worker": {"ray_num_cpus": 1.0, "max_concurrent_requests": 8},
                "attestation": {"evidence": "soft"},
            },
        }
    ],
}
SEALED = {"sealed": "/dev/redoubt-model", "key": "kbs:///redoubt/model/small", "served_name": "small"}


def measured(configuration: Any = CONFIGURATION, evidence: str = "soft") -> MeasuredConfig:
    return MeasuredConfig.parse(yaml.safe_dump(configuration), evidence)


def with_change(*path: Any, value: Any) -> Any:
    """The configuration with another value at a path."""
    made: Any = deepcopy(CONFIGURATION)
    part = made
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return made


def test_what_it_serves_is_what_the_text_says() -> None:
    made = measured()
    assert made.values == CONFIGURATION
    assert made.service.application.args.model.folder == "/models/small"
    assert made.difference(CONFIGURATION) is None


@pytest.mark.parametrize(
    ("configuration", "fault"),
    [
        (with_change("http_options", "host", value="0.0.0.0"), "http_options.host: 0.0.0.0 would serve without TLS"),
        (with_change("proxy_location", value="HeadOnly"), "proxy_location: HeadOnly leaves pods without"),
        (
            with_change("applications", 0, "args", "attestation", "evidence", value="none"),
            "attestation.evidence: is none and the node's is soft",
        ),
        (
            with_change("applications", 0, "args", "model", value=SEALED),
            "redoubt: model.sha256: is missing, and without it the host can attach another image of small",
        ),
        (
            with_change("applications", 0, "runtime_env", value={"pip": ["elsewhere"]}),
            "redoubt: runtime_env: brings code that nobody has measured",
        ),
        (with_change("applications", 0, "import_path", value="os:system"), "import_path"),
        (with_change("applications", 0, "args", "model", "foldr", value="x"), "there is no such setting"),
        ("just text", "not a mapping"),
    ],
    ids=["address", "proxies", "evidence", "sealed", "runtime_env", "import_path", "knob", "text"],
)
def test_what_a_confidential_cluster_cannot_serve_is_named(configuration: Any, fault: str) -> None:
    with pytest.raises(SettingsError, match=f"^{SERVE_CONFIG}: .*{fault}"):
        measured(configuration)


def test_a_sealed_model_is_served_with_its_digest() -> None:
    sealed = with_change("applications", 0, "args", "model", value=SEALED | {"sha256": "ab" * 32})
    assert measured(sealed).service.application.args.model.sha256 == "ab" * 32


def test_without_collateral_no_processors_quote_can_be_checked() -> None:
    coco = with_change("applications", 0, "args", "attestation", value={"evidence": "coco"})
    with pytest.raises(SettingsError, match="collateral_file: is missing"):
        measured(coco, "coco")
    coco["applications"][0]["args"]["attestation"]["collateral_file"] = "/collateral.json"
    assert measured(coco, "coco").service.application.args.attestation.evidence == "coco"


def test_what_is_not_yaml_is_named() -> None:
    with pytest.raises(SettingsError, match=rf"{SERVE_CONFIG}, line 1, column [0-9]+: not YAML"):
        MeasuredConfig.parse("{", "soft")
