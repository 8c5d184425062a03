"""Stores the keys of soft evidence in a folder, so that several machines share a platform.

Run `python -m app.attestation.soft_files FOLDER`. The pods of a test cluster share such a folder. Whoever has it can
make evidence that they accept.
"""

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.attestation.soft_pki import SoftPki

_PAIRS = {
    "root": ("root", "root_key"),
    "pck_ca": ("pck_ca", "pck_ca_key"),
    "pck": ("pck", "pck_key"),
    "tcb_signing": ("tcb_signing", "tcb_signing_key"),
}
_PPID = "ppid"


def write_pki(pki: SoftPki, folder: Path) -> None:
    """Writes certificates (NAME.crt) and keys (NAME.key, for this user only) into a new folder."""
    folder.mkdir(mode=0o700, parents=True)
    for name, (certificate, key) in _PAIRS.items():
        pem = getattr(pki, certificate).public_bytes(serialization.Encoding.PEM)
        (folder / f"{name}.crt").write_bytes(pem)
        secret = getattr(pki, key).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with os.fdopen(os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
    (folder / _PPID).write_text(pki.ppid.hex())


def read_pki(folder: Path) -> SoftPki:
    """Reads what `write_pki` wrote. Raises ValueError naming the folder."""
    values: dict[str, object] = {}
    try:
        for name, (certificate, key) in _PAIRS.items():
            values[certificate] = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
            values[key] = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), password=None)
            if not isinstance(values[key], ec.EllipticCurvePrivateKey):
                raise ValueError(f"{name}.key is not a key of an elliptic curve")
        values["ppid"] = bytes.fromhex((folder / _PPID).read_text())
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{folder}: no keys of soft evidence (python -m app.attestation.soft_files FOLDER): {error}"
        ) from error
    return SoftPki(**values)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the keys of soft evidence, for pods that share them.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="is made")
    folder: Path = parser.parse_args(arguments).folder
    write_pki(SoftPki.make(datetime.datetime.now(datetime.UTC)), folder)
    print(f"INSECURE: evidence that {folder} signs proves nothing. A policy's insecure_root is {folder / 'root.crt'}")


if __name__ == "__main__":
    main()
