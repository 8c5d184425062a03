"""`redoubt-verify verify | proxy | policy build, show, diff | collateral`.

Exit codes: 0 verified (or no difference), 1 refused (or a difference), 2 the policy or another input is wrong,
3 unreachable. Prints results to stdout and why something failed to stderr.
"""

import argparse
import asyncio
import datetime
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import dcap_qvl
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from redoubt_verify import policy as policy_file
from redoubt_verify import tdx
from redoubt_verify.connections import Verifier
from redoubt_verify.errors import REASONS, AttestationError, PolicyError, printable
from redoubt_verify.policy import Policy
from redoubt_verify.policy_build import build, open_policy
from redoubt_verify.proxy import Proxy
from redoubt_verify.transport import verify_once
from redoubt_verify.verify import Verdict, decode_answer, decode_collateral, judge

REFUSED, BAD_INPUT, UNREACHABLE = 1, 2, 3
_DESCRIPTION = """Checks which machine and software a Redoubt service is, before the first word goes to it.
Exit codes: 0 verified, 1 refused, 2 the policy or another input is wrong, 3 unreachable."""


class _OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line that says what is wrong and where to read on."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        self.exit(BAD_INPUT, f"{self.prog.split()[0]}: {message}; see {self.prog} -h\n")


def main(arguments: Sequence[str] | None = None, *, program: str = "redoubt-verify") -> int:
    """Runs a command; returns its exit code. program: what its user has called."""
    options = _parser(program).parse_args(arguments)
    try:
        return int(options.run(options))
    except AttestationError as error:
        if getattr(options, "json", False):
            print(json.dumps({"refused": error.reason, "why": str(error)}))
        print(f"REFUSED  {error}\n         {REASONS[error.reason]}", file=sys.stderr)
        return {"unreachable": UNREACHABLE, "policy_expired": BAD_INPUT}.get(error.reason, REFUSED)
    except (PolicyError, OSError, ValueError, OverflowError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return BAD_INPUT


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _OneLineParser(prog=program, description=_DESCRIPTION)
    commands = parser.add_subparsers(required=True)
    verify = commands.add_parser("verify", help="verify a service, or evidence from a file")
    verify.add_argument("url", nargs="?", help="https address of the service")
    verify.add_argument("--json", action="store_true", help="print the verdict as JSON")
    verify.add_argument("--offline", type=Path, metavar="FILE", help="an answer of /v1/attestation, instead of a URL")
    verify.add_argument("--nonce", help="offline: the nonce that was sent")
    verify.add_argument("--at", type=_moment, metavar="TIME", help="offline: judge as of this time (ISO 8601)")
    verify.add_argument("--save", type=Path, metavar="FILE", help="write the service's answer to a file")
    proxy = commands.add_parser("proxy", help="a local proxy for stock clients and browsers")
    proxy.add_argument("url", help="https address of the service")
    proxy.add_argument("--listen", default="127.0.0.1:8400", metavar="HOST:PORT", help="a loopback address")
    for command, run in ((verify, _verify), (proxy, _proxy)):
        command.add_argument("--policy", type=Path, required=True, help="what to demand (TOML)")
        command.add_argument("--collateral", type=Path, help="use this instead of the service's")
        command.add_argument("--allow-insecure", action="store_true", help="accept a policy with a test root")
        command.set_defaults(run=run)
    _add_policy(commands.add_parser("policy", help="make, print and compare policies"))
    collateral = commands.add_parser("collateral", help="fetch Intel's collateral for a quote")
    collateral.add_argument("evidence", type=Path, help="an answer of /v1/attestation, or a raw quote")
    collateral.add_argument("--out", type=Path, required=True)
    collateral.add_argument("--pccs", default=dcap_qvl.INTEL_PCS_URL, help="service to ask (default: Intel's)")
    collateral.set_defaults(run=_collateral)
    return parser


def _add_policy(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("build", help="a policy from evidence and from what you know of the deployment")
    make.add_argument("evidence", type=Path, help="an answer of /v1/attestation")
    make.add_argument("--collateral", type=Path, help="use this instead of the service's")
    make.add_argument("--initdata", type=Path, help="pins MR_CONFIG_ID to the SHA-384 of this file")
    make.add_argument("--days", type=int, default=90, help="until the policy expires")
    make.add_argument("--insecure-root", type=Path, help="trust this test root (PEM) instead of Intel's")
    make.add_argument("--at", type=_moment, metavar="TIME", help="judge the evidence as of this time (ISO 8601)")
    make.add_argument("--out", type=Path, help="the file to write, instead of stdout")
    make.set_defaults(run=_build)
    show = commands.add_parser("show", help="print a policy as it is understood")
    show.add_argument("policy", type=Path)
    show.set_defaults(run=_show)
    diff = commands.add_parser("diff", help="print where two policies differ; exit code 1 if they do")
    diff.add_argument("policy", type=Path)
    diff.add_argument("other", type=Path)
    diff.set_defaults(run=_diff)


def _moment(text: str) -> float:
    moment = datetime.datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _loaded(options: argparse.Namespace) -> tuple[Policy, Any]:
    return policy_file.load(options.policy, allow_insecure=options.allow_insecure), _given_collateral(options)


def _given_collateral(options: argparse.Namespace) -> Any:
    return decode_collateral(options.collateral.read_text()) if options.collateral else None


def _verify(options: argparse.Namespace) -> int:
    policy, collateral = _loaded(options)
    if (options.url is None) == (options.offline is None):
        raise ValueError("verify needs a URL or --offline FILE, and not both")
    if not options.offline and (options.nonce is not None or options.at is not None):
        raise ValueError("--nonce and --at are for --offline: a connection has its own nonce, and now")
    if options.offline:
        evidence = decode_answer(options.offline.read_bytes(), collateral)
        now = time.time() if options.at is None else options.at
        verdict = judge(evidence, policy, nonce=options.nonce, spki_sha256=None, now=now)
    else:
        verifier = Verifier(options.url, policy, collateral)
        try:
            verdict = verify_once(verifier)
        finally:
            if options.save and verifier.last_answer:
                options.save.write_bytes(verifier.last_answer)
    print(verdict.to_json() if options.json else _shown(verdict))
    return 0


def _shown(verdict: Verdict) -> str:
    """Formats a verdict for people, beginning with what is not secure about it."""
    lines = ["VERIFIED"]
    if verdict.insecure:
        lines = ["INSECURE  A test root signed this evidence: no processor protects what you send."]
    if verdict.unpinned:
        lines.append(f"not checked: {', '.join(verdict.unpinned)}")
    lines.append(f"platform      {verdict.tcb_status}, evaluation {verdict.tcb_eval_data_number}, {verdict.platform}")
    lines += [f"advisory      {name}" for name in verdict.advisories]
    lines += [f"{name:<13} {value}" for name, value in verdict.measurements.items()]
    lines += [f"model         {name} {digest}" for name, digest in verdict.models]
    lines.append(f"image         {verdict.image}")
    lines.append(f"config        {verdict.config_sha256}")
    lines.append(f"TLS key       {verdict.tls_spki_sha256}")
    return "\n".join(map(printable, lines))


def _proxy(options: argparse.Namespace) -> int:
    policy, collateral = _loaded(options)
    host, _, port = options.listen.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"--listen takes HOST:PORT, not {options.listen}")
    verifier = Verifier(options.url, policy, collateral)
    print(_shown(verify_once(verifier)))
    with Proxy(verifier, host.strip("[]"), int(port)) as proxy:
        print(
            f"Listening on {proxy.address}: open it in a browser, or use {proxy.address}/v1 as a base URL.", flush=True
        )
        try:
            proxy.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _build(options: argparse.Namespace) -> int:
    pem = options.insecure_root.read_text() if options.insecure_root else None
    root = x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER) if pem else None
    now = time.time() if options.at is None else options.at
    evidence = decode_answer(options.evidence.read_bytes(), _given_collateral(options))
    verdict = judge(evidence, open_policy(root), nonce=None, spki_sha256=None, now=now)
    initdata = hashlib.sha384(options.initdata.read_bytes()).hexdigest() if options.initdata else None
    text = build(verdict, initdata_sha384=initdata, days=options.days, insecure_root=pem, now=now)
    policy_file.parse(text, allow_insecure=True)
    if options.out:
        options.out.write_text(text)
    else:
        print(text, end="")
    return 0


def _show(options: argparse.Namespace) -> int:
    print(json.dumps(policy_file.describe(policy_file.load(options.policy, allow_insecure=True)), indent=2))
    return 0


def _diff(options: argparse.Namespace) -> int:
    paths = (options.policy, options.other)
    one, other = (policy_file.describe(policy_file.load(path, allow_insecure=True)) for path in paths)
    names = [name for name in one if one[name] != other[name]]
    for name in names:
        print(f"{name}\n  - {json.dumps(one[name])}\n  + {json.dumps(other[name])}")
    return REFUSED if names else 0


def _collateral(options: argparse.Namespace) -> int:
    data = options.evidence.read_bytes()
    quote = decode_answer(data).quote if data.lstrip()[:1] == b"{" else data

    async def fetch() -> dcap_qvl.QuoteCollateralV3:
        return await dcap_qvl.get_collateral(options.pccs, quote)

    tdx.parse(quote)
    try:
        collateral = asyncio.run(fetch())
    except ValueError as error:
        raise AttestationError("unreachable", str(error)) from error
    options.out.write_text(collateral.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
