"""The initdata of a confidential guest: one TOML text, of which SHA-384 is the trust domain's MR_CONFIG_ID.

The host hands it to the guest as an annotation, so it is public. The guest's agents read their configuration from it,
and refuse one that is not what the processor has measured. Knows no manifests.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

_URL = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[A-Za-z0-9._-]+)*/?")


class InitdataError(ValueError):
    """What should go into the initdata cannot; the message says why."""


def initdata(*, policy: str, kbs_url: str, kbs_certificate: str, image_repository: str) -> bytes:
    """The text of the initdata: the same bytes for the same arguments.

    Args:
        policy: the agent's, in Rego.
        kbs_url: where the guest finds the KBS, with https.
        kbs_certificate: the certificate (PEM) that the KBS shows, or its authority's.
        image_repository: the only repository, without tag or digest, that the guest pulls from.

    Raises InitdataError.
    """
    if not _URL.fullmatch(kbs_url):
        raise InitdataError(f"the KBS needs an address with https, not {kbs_url}")
    try:
        if "PRIVATE KEY" in kbs_certificate:
            raise ValueError("with a private key")
        chain = x509.load_pem_x509_certificates(kbs_certificate.encode())
    except ValueError as error:
        raise InitdataError(f"the KBS needs its certificate in PEM, without a key: {error}") from error
    certificate = "".join(each.public_bytes(Encoding.PEM).decode() for each in chain).strip()
    images = json.dumps(
        {
            "default": [{"type": "reject"}],
            "transports": {"docker": {image_repository: [{"type": "insecureAcceptAnything"}]}},
        },
        indent=2,
    )
    files = {
        "aa.toml": f'[token_configs.kbs]\nurl = "{kbs_url}"\ncert = """\n{certificate}\n"""\n',
        "cdh.toml": (
            f'[kbc]\nname = "cc_kbc"\nurl = "{kbs_url}"\nkbs_cert = """\n{certificate}\n"""\n\n'
            # Which image is pulled is for the agent's policy, by its digest; here nothing else than that is even tried.
            f'[image]\nimage_security_policy = """\n{images}\n"""\n'
        ),
        "policy.rego": policy,
    }
    return _toml(files).encode()


def digest(data: bytes) -> str:
    """MR_CONFIG_ID, hex."""
    return hashlib.sha384(data).hexdigest()


def annotation(data: bytes) -> str:
    """The value of the annotation with which the host hands it over."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def _toml(files: Mapping[str, str]) -> str:
    lines = ['version = "0.1.0"', 'algorithm = "sha384"', "", "[data]"]
    for name, text in files.items():
        if "'''" in text:
            raise InitdataError(f"{name} has three apostrophes in a row, which TOML cannot hold in a literal text")
        lines += [f"\"{name}\" = '''", f"{text}'''", ""]
    return "\n".join(lines)
