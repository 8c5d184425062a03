"""The attestation service as a process of its own: `python -m app.attestation.process SOCKET`.

Reads its job as a line of JSON from standard input, and ends when that closes, with the process that holds it open.
Before it answers it prints a line of JSON: with soft evidence what a client must demand of it, otherwise null.
"""

import asyncio
import json
import logging
import ssl
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import uvicorn

from app.attestation.evidence import SoftEvidence, evidence_source
from app.attestation.service import AttestationService
from app.attestation.soft import SoftTee
from app.attestation.statement import Facts


@dataclass(frozen=True, slots=True)
class Job:
    """The process' job."""

    facts: Facts
    evidence: str
    """"coco" or "soft"."""
    timeout_s: float
    collateral: Mapping[str, str] | None
    soft_pki: str | None = None
    """A folder with the keys of soft evidence; None: new ones."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        values = json.loads(text)
        return cls(**{**values, "facts": Facts(**values["facts"])})


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    job = Job.from_json(sys.stdin.readline())
    source = evidence_source(job.evidence, timeout_s=job.timeout_s, collateral=job.collateral, soft_pki=job.soft_pki)
    policy = soft_measurements(source.tee) if isinstance(source, SoftEvidence) else None
    print(json.dumps(policy), flush=True)
    application = AttestationService(job.facts, source, job.timeout_s).application()
    configuration = uvicorn.Config(application, uds=sys.argv[1], log_level="warning", access_log=False, lifespan="off")
    asyncio.run(_serve(uvicorn.Server(configuration)))


def soft_measurements(tee: SoftTee) -> dict[str, str]:
    """A soft TEE's values for a policy: its root (PEM) and its measurements (hex)."""
    report = tee.measured()
    names = ("rtmr0", "rtmr1", "rtmr2", "rtmr3", "mr_config_id", "mr_seam", "td_attributes", "xfam")
    measured = {name: getattr(report, name).hex() for name in names}
    root = ssl.DER_cert_to_PEM_cert(tee.pki.root_der)
    return {"insecure_root": root, "mrtd": report.mr_td.hex(), **measured}


async def _serve(server: uvicorn.Server) -> None:
    async def stop_with_parent() -> None:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.should_exit = True

    watch = asyncio.create_task(stop_with_parent())
    await server.serve()
    watch.cancel()


if __name__ == "__main__":
    main()
