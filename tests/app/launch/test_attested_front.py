"""The front and the attestation service as `redoubt serve` starts them; behind them is a small service."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from app.attestation.soft_files import main as make_soft_keys
from app.attestation.statement import model_digest
from app.launch.attested_front import ALLOW_SOFT, attested_front, check, config_digest, model_digests
from app.launch.config_file import ServiceConfig, checked_config, with_digests
from app.sealing.keys import make_key_file
from app.sealing.seal import seal
from app.settings.environment import ATTESTED_FRONT
from app.settings.ingress import AttestationSettings
from app.settings.knobs import SettingsError
from tests.service.running import free_port, wait_until


class Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)
    return folder


def configuration(folder: Path, model: Path, http_options: Any = None, **attestation: Any) -> ServiceConfig:
    return configuration_of(folder, {"folder": str(model)}, http_options, **attestation)


def configuration_of(folder: Path, model: Any, http_options: Any = None, **attestation: Any) -> ServiceConfig:
    path = folder / "service.yaml"
    arguments = {"model": model, "attestation": attestation}
    application = {"name": "redoubt", "route_prefix": "/", "import_path": "app.deploy:build", "args": arguments}
    listens = {} if http_options is None else {"http_options": http_options}
    path.write_text(yaml.safe_dump({"applications": [application], **listens}))
    return checked_config(path)


def test_it_shows_evidence_passes_requests_on_and_ends(tmp_path: Path, model: Path, service_port: int) -> None:
    config = configuration(tmp_path, model, {"port": service_port}, evidence="soft", tls_port=free_port())
    with ExitStack() as stack, attested_front(config, model_digests(config), tmp_path) as front:
        client = stack.enter_context(httpx.Client(base_url=front.url, verify=False, timeout=60))
        wait_until(lambda: answers(client), "the front listens")
        answer = client.get("/v1/attestation", params={"nonce": "0" * 64}).json()
        said = json.loads(base64.b64decode(answer["statement"]))
        assert said["config_sha256"] == config_digest(config)
        assert said["models"] == [{"name": "small", "sha256": model_digest(model)}]
        assert answer["insecure"] is True
        assert client.get("/v1/models").text == "ok"
        assert front.policy is not None
        assert front.policy.read_text().startswith("# INSECURE")
        assert front.loss() is None
        attestation_service, _ = front._processes
        attestation_service.kill()
        wait_until(lambda: front.loss() is not None, "the loss is noticed")
        assert "attestation service has ended" in str(front.loss())


def test_on_a_cluster_it_listens_on_the_pods_address_and_names_the_authority(
    tmp_path: Path, model: Path, service_port: int
) -> None:
    keys, authority = tmp_path / "keys", "ab" * 32
    make_soft_keys([str(keys)])
    config = configuration(tmp_path, model, {"port": service_port}, evidence="soft", tls_port=free_port())
    cluster = {"host": "127.0.0.2", "cluster_ca_spki_sha256": authority, "soft_pki": str(keys)}
    with ExitStack() as stack, attested_front(config, model_digests(config), tmp_path, **cluster) as front:
        assert front.url.startswith("https://127.0.0.2:")
        client = stack.enter_context(httpx.Client(base_url=front.url, verify=False, timeout=60))
        wait_until(lambda: answers(client), "the front listens")
        answer = client.get("/v1/attestation", params={"nonce": "0" * 64}).json()
        assert json.loads(base64.b64decode(answer["statement"]))["cluster_ca_spki_sha256"] == authority
        assert front.policy is not None
        assert (keys / "root.crt").read_text() in front.policy.read_text()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code == 200
    except httpx.HTTPError:
        return False


def test_soft_evidence_needs_a_switch_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_SOFT, raising=False)
    with pytest.raises(SettingsError, match="proves nothing"):
        check(AttestationSettings(evidence="soft"))
    monkeypatch.setenv(ALLOW_SOFT, "1")
    check(AttestationSettings(evidence="soft"))


def test_a_collateral_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "collateral.json"
    for text in (None, "nonsense"):
        if text is not None:
            path.write_text(text)
        with pytest.raises(SettingsError, match=r"collateral_file: .*collateral\.json"):
            check(AttestationSettings(evidence="coco", collateral_file=str(path)))


def test_the_configurations_digest_is_that_of_what_it_sets(tmp_path: Path, model: Path) -> None:
    digest = config_digest(configuration(tmp_path, model, evidence="soft"))
    assert digest == config_digest(configuration(tmp_path, model, evidence="soft"))
    assert digest != config_digest(configuration(tmp_path, model, evidence="soft", tls_port=9443))
    by_hand = {
        "applications": [
            {
                "name": "redoubt",
                "route_prefix": "/",
                "import_path": "app.deploy:build",
                "args": {"model": {"folder": str(model)}, "attestation": {"evidence": "soft"}},
            }
        ]
    }
    text = json.dumps(by_hand, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(text.encode()).hexdigest()


def test_a_sealed_models_digest_is_the_folders_and_the_only_one_that_is_served(tmp_path: Path, model: Path) -> None:
    uri = f"file://{tmp_path}/key"
    place = {"sealed": str(tmp_path / "image"), "key": uri, "served_name": "small"}
    seal(model, tmp_path / "image", make_key_file(tmp_path / "key"), progress=False)
    config = configuration_of(tmp_path, place, evidence="soft")
    digests = model_digests(config)
    assert digests == {"small": model_digest(model)}
    served = with_digests(config, digests)
    assert served.application.args.model_card().sha256 == digests["small"]
    assert config_digest(config) != config_digest(served), "what is set is not what is served"
    of_folder = configuration(tmp_path, model, evidence="soft")
    assert with_digests(of_folder, model_digests(of_folder)) == of_folder


def test_without_a_front_a_service_that_is_to_be_verified_does_not_start(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.serve.exceptions import RayServeException

    from app.deploy import build
    from app.settings.applications import parse_settings

    monkeypatch.delenv(ATTESTED_FRONT, raising=False)
    settings = parse_settings({"model": {"folder": str(model)}, "attestation": {"evidence": "soft"}})
    with pytest.raises(RayServeException, match="only `redoubt serve` and nodes with REDOUBT_EVIDENCE have the front"):
        build(settings)
