"""`redoubt-verify collateral` fetches from a service with Intel's interface what then makes a verdict."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from app.attestation.soft import SoftTee
from redoubt_verify import cli
from tests.verify.fake_service import FakeService

_PATH = "/sgx/certification/v4/"
_TDX_PATH = "/tdx/certification/v4/"


class CertificationService(ThreadingHTTPServer):
    """A soft TEE's, with the interface of Intel's caching service (version 4)."""

    daemon_threads = True

    def __init__(self, tee: SoftTee) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        parts = tee.collateral()
        chain = "TCB-Info-Issuer-Chain", parts["tcb_info_issuer_chain"]
        tcb_info = f'{{"tcbInfo":{parts["tcb_info"]},"signature":"{parts["tcb_info_signature"]}"}}'
        identity = f'{{"enclaveIdentity":{parts["qe_identity"]},"signature":"{parts["qe_identity_signature"]}"}}'
        identity_chain = "SGX-Enclave-Identity-Issuer-Chain", parts["qe_identity_issuer_chain"]
        crl_chain = "SGX-PCK-CRL-Issuer-Chain", parts["pck_crl_issuer_chain"]
        fmspc = json.loads(parts["tcb_info"])["fmspc"]
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers: dict[str, tuple[tuple[str, str] | None, bytes]] = {
            f"{_PATH}pckcrl?ca=processor&encoding=der": (crl_chain, bytes.fromhex(parts["pck_crl"])),
            f"{_TDX_PATH}tcb?fmspc={fmspc}&update=standard": (chain, tcb_info.encode()),
            f"{_TDX_PATH}qe/identity?update=standard": (identity_chain, identity.encode()),
            f"{_PATH}rootcacrl": (None, parts["root_ca_crl"].encode()),
        }


class _Handler(BaseHTTPRequestHandler):
    server: CertificationService

    def do_GET(self) -> None:
        header, body = self.server.answers.get(self.path, (None, None))
        self.send_response(404 if body is None else 200)
        if header is not None:
            self.send_header(header[0], quote(header[1]))
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


@pytest.fixture
def certification(tee: SoftTee) -> Iterator[CertificationService]:
    made = CertificationService(tee)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize("form", ["answer", "quote"])
def test_what_was_fetched_makes_a_verdict(
    form: str, service: FakeService, certification: CertificationService, policy_file: Path, tmp_path: Path
) -> None:
    evidence, fetched = tmp_path / "evidence", tmp_path / "collateral.json"
    verify = ("verify", service.url, "--policy", str(policy_file), "--allow-insecure")
    service.change_answer = lambda answer: answer.update(collateral=None)
    assert cli.main([*verify, "--save", str(evidence)]) == 1
    if form == "quote":
        evidence.write_bytes(base64.b64decode(json.loads(evidence.read_text())["quote"]))
    fetch = ("collateral", str(evidence), "--out", str(fetched), "--pccs")
    assert cli.main([*fetch, certification.url]) == 0
    assert cli.main([*verify, "--collateral", str(fetched)]) == 0


def test_a_service_that_knows_no_such_platform(
    service: FakeService, certification: CertificationService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence, fetched = tmp_path / "quote", tmp_path / "collateral.json"
    evidence.write_bytes(service.tee.quote(bytes(64)))
    certification.answers = {}
    assert cli.main(["collateral", str(evidence), "--out", str(fetched), "--pccs", certification.url]) == 3
    assert "HTTP 404" in capsys.readouterr().err
    assert not fetched.exists()
