"""Starts the processes through which clients verify this machine: the attested front and the attestation service.

Knows the configuration and processes; the protocol is in `app.attestation`.
"""

import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.attestation.front import haproxy, start_front
from app.attestation.process import Job
from app.attestation.statement import Facts, model_digest
from app.attestation.tls_key import make_tls_key
from app.launch.config_file import ServiceConfig
from app.model_check import opened_model
from app.sealing.sealed_model import SealedModel
from app.settings.ingress import AttestationSettings
from app.settings.knobs import SettingsError

ALLOW_SOFT = "REDOUBT_ALLOW_SOFT_EVIDENCE"
IMAGE = "REDOUBT_IMAGE"
"""The environment variable with the container image and its digest."""
_START_TIMEOUT_S = 30.0
_UNPINNED = ["advisories_allowed", "min_tcb_eval_data_number", "collateral_max_age", "platforms", "image"]


def config_digest(config: ServiceConfig) -> str:
    """SHA-256 in hex of the configuration's set values, as JSON with sorted keys and without spaces."""
    values = config.model_dump(mode="json", exclude_unset=True)
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def model_digests(config: ServiceConfig) -> dict[str, str]:
    """Returns each model's digest by its name in the API. Raises OSError, SettingsError."""
    opened = {one.args.model.name: opened_model(one.args.model_card()) for one in config.applications}
    return {
        name: model.digest if isinstance(model, SealedModel) else model_digest(model) for name, model in opened.items()
    }


def check(attestation: AttestationSettings) -> None:
    """Raises SettingsError for evidence that must not be used here, and for missing prerequisites."""
    if attestation.evidence == "soft" and os.environ.get(ALLOW_SOFT) != "1":
        raise SettingsError(
            "attestation.evidence: soft evidence proves nothing, since anybody can make it. "
            f"To try attestation out, set {ALLOW_SOFT}=1 in the environment"
        )
    haproxy()
    collateral(attestation)


class AttestedFront:
    """The running front and attestation service."""

    def __init__(self, url: str, policy: Path | None, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
        self.url = url
        """The TLS address for clients on this machine."""
        self.policy = policy
        """A policy with which clients accept this service; only with soft evidence, which makes its own."""
        self._processes = processes

    def loss(self) -> str | None:
        """A message that says which process has ended; None while both run."""
        for name, process in zip(("attestation service", "front"), self._processes, strict=True):
            if process.poll() is not None:
                return f"The {name} has ended (status {process.returncode}). Nobody can reach the service without it."
        return None


@contextmanager
def attested_front(
    config: ServiceConfig,
    models: Mapping[str, str],
    folder: Path,
    *,
    host: str | None = None,
    cluster_ca_spki_sha256: str | None = None,
    soft_pki: str | None = None,
) -> Iterator[AttestedFront]:
    """Runs both processes; the service's port is then on loopback. Raises SettingsError.

    Args:
        config: what the service serves.
        models: their digests by name (`model_digests`).
        folder: the service's private folder.
        host: the address to listen on; None: that of `http_options`.
        cluster_ca_spki_sha256: of the authority of the cluster's nodes, hex; None: this is no cluster.
        soft_pki: a folder with the keys of soft evidence; None: new ones.
    """
    http_options = config.http_options if host is None else config.http_options.model_copy(update={"host": host})
    attestation = config.application.args.attestation
    key = make_tls_key(["localhost"])
    facts = Facts(
        tls_spki_sha256=key.spki_sha256,
        image=os.environ.get(IMAGE),
        config_sha256=config_digest(config),
        models=models,
        cluster_ca_spki_sha256=cluster_ca_spki_sha256,
    )
    job = Job(facts, attestation.evidence, attestation.quote_timeout_s, collateral(attestation), soft_pki)
    socket_path = folder / "attestation"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(_start_service(job, socket_path))
        measured = _await_start(processes[0], socket_path)
        processes.append(
            start_front(
                folder,
                key,
                host=http_options.host,
                tls_port=attestation.tls_port,
                attestation_socket=socket_path,
                service_port=http_options.port,
            )
        )
        policy = None
        if measured is not None:
            policy = folder / "policy.toml"
            policy.write_text(_policy(facts, measured), encoding="utf-8")
        yield AttestedFront(http_options.url("https", attestation.tls_port), policy, processes)
    finally:
        for process in reversed(processes):
            process.terminate()
            with process:  # closes the pipes, and waits
                pass


def collateral(attestation: AttestationSettings) -> Mapping[str, str] | None:
    """Reads the collateral file; None: there is none. Raises SettingsError."""
    if attestation.collateral_file is None:
        return None
    try:
        parts: Mapping[str, str] = json.loads(Path(attestation.collateral_file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"attestation.collateral_file: {attestation.collateral_file}: {error}") from error
    return parts


def _start_service(job: Job, address: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "app.attestation.process", str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(job.to_json().encode() + b"\n")
    process.stdin.flush()
    return process


def _await_start(process: "subprocess.Popen[bytes]", address: Path) -> dict[str, str] | None:
    """Waits for the process' socket, and returns what the process reports of its soft evidence."""
    assert process.stdout is not None
    said = process.stdout.readline()
    give_up_s = time.monotonic() + _START_TIMEOUT_S
    while not address.exists():
        if process.poll() is not None or time.monotonic() > give_up_s:
            raise SettingsError("attestation: its service did not start")
        time.sleep(0.05)
    measured: dict[str, str] | None = json.loads(said)
    return measured


def _policy(facts: Facts, measured: Mapping[str, str]) -> str:
    """Makes a policy file for clients of this service, valid until tomorrow."""
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    models = ", ".join(f'{{ name = {json.dumps(name)}, sha256 = "{sha}" }}' for name, sha in facts.models.items())
    return "\n".join(
        [
            "# INSECURE: this service signs its own evidence, to try attestation out. It proves nothing.",
            f"expires = {expires:%Y-%m-%dT%H:%M:%SZ}",
            'tcb_statuses = ["UpToDate"]',
            *(f'{name} = "{value}"' for name, value in measured.items() if name != "insecure_root"),
            f'config_sha256 = "{facts.config_sha256}"',
            f"models = [{models}]",
            f"unpinned = {json.dumps(_UNPINNED)}",
            f'insecure_root = """\n{measured["insecure_root"]}"""',
            "",
        ]
    )
