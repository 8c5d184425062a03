"""A service's statement about itself, and how a quote is bound to it.

`verify/` has the other half: both follow the protocol in docs/confidential.md. Knows nothing of quotes or HTTP.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.model_folder import files_digest

VERSION = 1
REPORT_DATA_PREFIX = b"redoubt/attestation/v1\0"
NONCE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Facts:
    """The statement's fields that stay the same while the service runs."""

    tls_spki_sha256: str
    """SHA-256 in hex of the SubjectPublicKeyInfo (DER) of the front's certificate."""
    image: str | None
    """The container image with its digest; None outside of a container."""
    config_sha256: str
    """SHA-256 in hex of the configuration as the service reads it."""
    models: Mapping[str, str]
    """`model_digest` of each model by its name in the API."""
    cluster_ca_spki_sha256: str | None
    """SHA-256 in hex of the authority that certifies the cluster's nodes; None on one machine."""


def statement(facts: Facts, nonce: str) -> bytes:
    """The JSON statement for a client's nonce (64 lower-case hex digits), whose exact bytes are signed."""
    assert NONCE.fullmatch(nonce)
    values = {
        "v": VERSION,
        "nonce": nonce,
        "tls_spki_sha256": facts.tls_spki_sha256,
        "hpke": None,
        "image": facts.image,
        "config_sha256": facts.config_sha256,
        "models": [{"name": name, "sha256": digest} for name, digest in sorted(facts.models.items())],
        "cluster_ca_spki_sha256": facts.cluster_ca_spki_sha256,
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def report_data(statement: bytes) -> bytes:
    return hashlib.sha512(REPORT_DATA_PREFIX + statement).digest()


def model_digest(folder: Path) -> str:
    """SHA-256 in hex of a converted model: over the output of `sha256sum *` in its folder, in the C locale's order.

    Raises OSError. Folders inside are not part of a model.
    """
    return files_digest({path.name: _file_digest(path) for path in folder.iterdir() if path.is_file()})


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
