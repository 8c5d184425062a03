"""A client against the front and the attestation service of `redoubt serve`, with soft evidence."""

from pathlib import Path

import pytest

from app.launch.attested_front import attested_front, model_digests
from redoubt_verify import AttestationError, PolicyError, client
from redoubt_verify.connections import Verifier
from redoubt_verify.policy import load
from redoubt_verify.transport import client_of, verify_once
from tests.app.launch.test_attested_front import configuration, model, service_port
from tests.service.running import free_port, wait_until

__all__ = ["model", "service_port"]


def test_it_is_verified_with_the_policy_that_it_writes(tmp_path: Path, model: Path, service_port: int) -> None:
    config = configuration(tmp_path, model, {"port": service_port}, evidence="soft", tls_port=free_port())
    with attested_front(config, model_digests(config), tmp_path) as front:
        assert front.policy is not None
        verifier = Verifier(front.url, load(front.policy, allow_insecure=True))
        wait_until(lambda: _listens(verifier), "the front listens")
        with client_of(verifier) as http:
            assert http.get(f"{front.url}/v1/models").text == "ok"
        [verdict] = verifier.verdicts
        assert verdict.insecure
        assert verdict.models[0][0] == "small"
        with pytest.raises(PolicyError):
            client(front.url, front.policy)
        other = front.policy.read_text().replace(verdict.config_sha256, "00" * 32)
        front.policy.write_text(other)
        with (
            client(front.url, front.policy, allow_insecure=True) as http,
            pytest.raises(AttestationError, match="config_digest"),
        ):
            http.get(f"{front.url}/v1/models")


def _listens(verifier: Verifier) -> bool:
    try:
        verify_once(verifier)
    except AttestationError as error:
        if error.reason != "unreachable":
            raise
        return False
    return True
