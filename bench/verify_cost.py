"""What a client pays for verifying a service: for a verdict, a new connection, and a request over a verified one.

The service is a soft TEE on loopback in this process; signatures cost a client the same as a real processor's. Plain
connections (the same library, no verification) are timed beside the verified ones. Knows no model. Run:
`python -m bench.verify_cost`; prints one JSON object.
"""

import argparse
import base64
import datetime
import hashlib
import json
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.attestation.soft import SoftTee
from bench.common import at_least, machine, print_result
from redoubt_verify import sslcontext
from redoubt_verify.connections import Verifier
from redoubt_verify.policy_build import open_policy
from redoubt_verify.transport import client_of
from redoubt_verify.verify import REPORT_DATA_PREFIX, decode_answer, judge

NONCE_AT = slice(len("GET /v1/attestation?nonce="), len("GET /v1/attestation?nonce=") + 64)


class SoftService:
    """Answers requests without a body over TLS: evidence for /v1/attestation, two bytes for all else."""

    def __init__(self, tee: SoftTee, folder: Path) -> None:
        """folder: for the TLS key."""
        self._tee = tee
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([])
        builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        day = datetime.timedelta(days=1)
        builder = builder.not_valid_before(tee.issued - day).not_valid_after(tee.issued + day)
        certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        form = serialization.PrivateFormat.PKCS8
        private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (folder / "key.pem").write_bytes(certificate + private)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "key.pem")
        public = serialization.PublicFormat.SubjectPublicKeyInfo
        self._spki = hashlib.sha256(key.public_key().public_bytes(serialization.Encoding.DER, public)).hexdigest()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def answer(self, nonce: str) -> bytes:
        """The body of the answer to a nonce."""
        values = {"v": 1, "nonce": nonce, "tls_spki_sha256": self._spki, "hpke": None, "image": None}
        models = [{"name": "model", "sha256": "00" * 32}]
        values |= {"config_sha256": "00" * 32, "models": models, "cluster_ca_spki_sha256": None}
        statement = json.dumps(values).encode()
        quote = self._tee.quote(hashlib.sha512(REPORT_DATA_PREFIX + statement).digest())
        parts = {"statement": statement, "quote": quote, "event_log": self._tee.event_log}
        answer: dict[str, Any] = {name: base64.b64encode(part).decode() for name, part in parts.items()}
        return json.dumps(answer | {"collateral": self._tee.collateral()}).encode()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with self._context.wrap_socket(connection, server_side=True) as tls:
                while request := tls.recv(65536):
                    asked = request.startswith(b"GET /v1/attestation")
                    body = self.answer(request[NONCE_AT].decode()) if asked else b"{}"
                    tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        except OSError:
            return


def times_ms(call: Callable[[], object], count: int) -> dict[str, float]:
    """Median, 95th percentile and least of `count` calls, in milliseconds."""
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    samples.sort()
    return {"median": statistics.median(samples), "p95": samples[int(count * 0.95)], "least": samples[0]}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All times, in milliseconds."""
    tee = SoftTee.make()
    tee.version = options.quote_version
    policy = open_policy(tee.pki.root_der)
    with TemporaryDirectory() as folder:
        service = SoftService(tee, Path(folder))
        body = service.answer("00" * 32)
        now = time.time()

        def verdict() -> None:
            judge(decode_answer(body), policy, nonce="00" * 32, spki_sha256=None, now=now)

        def verified() -> Any:
            return client_of(Verifier(service.url, policy))

        def plain() -> Any:
            return httpx2.Client(verify=sslcontext.context(), trust_env=False)

        result: dict[str, Any] = {**machine(), "unit": "ms", "quote_version": options.quote_version}
        result["verdict"] = times_ms(verdict, options.count)
        result["server_quote"] = times_ms(lambda: service.answer("00" * 32), options.count)
        for name, make in (("plain", plain), ("verified", verified)):

            def connect(make: Callable[[], Any] = make) -> None:
                with make() as client:
                    client.get(f"{service.url}/healthz")

            result[f"new_connection_{name}"] = times_ms(connect, options.count)
            with make() as client:
                client.get(f"{service.url}/healthz")
                warm = times_ms(partial(client.get, f"{service.url}/healthz"), options.count * 5)
            result[f"warm_request_{name}"] = warm
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one JSON object; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=at_least(20), default=200, help="samples of each (default %(default)s)")
    parser.add_argument("--quote-version", type=int, choices=(4, 5), default=4)
    options = parser.parse_args(arguments)
    return print_result(lambda: measure(options), (OSError,), indent=2)


if __name__ == "__main__":
    raise SystemExit(main())
