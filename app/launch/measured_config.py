"""The single configuration that a confidential cluster serves, from a measured variable.

`REDOUBT_SERVE_CONFIG` is pinned by the container's policy, so nobody who can reach the cluster can make it serve
anything else. Knows how to compare two configurations, and not who submits one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import yaml  # type: ignore[import-untyped]

from app.launch.config_file import ServiceConfig, parse_config
from app.settings.knobs import SettingsError

SERVE_CONFIG = "REDOUBT_SERVE_CONFIG"
"""The environment variable with the configuration's text, YAML."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MeasuredConfig:
    """A configuration that nodes of a confidential cluster can serve."""

    values: Mapping[str, Any]
    """The values as in the text."""
    service: ServiceConfig

    @classmethod
    def parse(cls, text: str, evidence: str) -> Self:
        """Parses a configuration. evidence: the kind that the node is started with. Raises SettingsError."""
        service = parse_config(text, SERVE_CONFIG)
        if (mistake := next(_mistakes(service, evidence), None)) is not None:
            raise SettingsError(f"{SERVE_CONFIG}: {mistake}")
        return cls(yaml.safe_load(text), service)

    def difference(self, values: Any) -> str | None:
        """The first path at which other values differ, naming only our keys; None: they are the same configuration.

        1 and 1.0 are equal, because converters from YAML to JSON write either.
        """
        return _difference(self.values, values, "")

    def to_json(self, more: Mapping[str, Any]) -> bytes:
        """Returns the JSON for Ray Serve. more: further top-level keys."""
        return json.dumps({**self.values, **more}, sort_keys=True).encode()


def _mistakes(config: ServiceConfig, evidence: str) -> Iterator[str]:
    if config.http_options.host != _LOOPBACK:
        yield (
            f"http_options.host: {config.http_options.host} would serve without TLS: "
            f"set {_LOOPBACK}, where the front of each pod finds the service"
        )
    if config.proxy_location != "EveryNode":
        yield f"proxy_location: {config.proxy_location} leaves pods without the service: set EveryNode"
    attestation = config.application.args.attestation
    if attestation.evidence != evidence:
        yield f"attestation.evidence: is {attestation.evidence} and the node's is {evidence}: set the same"
    if evidence == "coco" and attestation.collateral_file is None:
        yield "attestation.collateral_file: is missing, and without it no node can check another one's quote"
    for application in config.applications:
        model = application.args.model
        if model.sealed is not None and model.sha256 is None:
            yield (
                f"{application.name}: model.sha256: is missing, and without it the host can attach another image of "
                f"{model.name} to a node later than to the one that clients verify: `redoubt seal` prints it"
            )
        if application.runtime_env:
            yield f"{application.name}: runtime_env: brings code that nobody has measured: leave it out"


def _difference(ours: Any, theirs: Any, path: str) -> str | None:
    if isinstance(ours, Mapping) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            return path or "the top level"
        parts = [(ours[key], theirs[key], f"{path}.{key}" if path else str(key)) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return path
        parts = [(one, other, f"{path}[{index}]") for index, (one, other) in enumerate(zip(ours, theirs, strict=True))]
    else:
        return None if _scalar(ours) == _scalar(theirs) else path
    return next((found for part in parts if (found := _difference(*part)) is not None), None)


def _scalar(value: Any) -> tuple[str, Any]:
    """A value with its type, where integers and floats are both numbers, and booleans are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return type(value).__name__, value
    return "number", value
