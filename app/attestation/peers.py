"""Mutual attestation of a confidential cluster's nodes, before one admits the other.

A node's quote signs its role, a nonce of each side, its own key and the other side's key as it saw it. So a quote is
valid for one exchange, in one direction, over one channel: it can be neither reflected nor relayed. A peer is accepted
if its measurements equal this node's own, because nodes of one cluster run one image with one configuration; so no
policy has to contain its own digest. `redoubt_verify` checks the quotes.
"""

import hashlib
from dataclasses import dataclass, replace

from app.attestation.evidence import Evidence
from redoubt_verify import tdx, verify
from redoubt_verify.policy import MEASUREMENTS, Policy
from redoubt_verify.policy_build import open_policy

PREFIX = b"redoubt/node/v1\0"
NONCE_BYTES = 32
HEAD, WORKER = b"head", b"worker"
"""The roles as they appear in quotes."""


def said(role: bytes, *, head_nonce: bytes, worker_nonce: bytes, own_spki: bytes, peer_spki: bytes) -> bytes:
    """The statement that a node's quote is made for. SPKIs: SubjectPublicKeyInfo in DER, which includes its length."""
    assert role in (HEAD, WORKER)
    assert len(head_nonce) == len(worker_nonce) == NONCE_BYTES
    return role + head_nonce + worker_nonce + own_spki + peer_spki


def report_data(statement: bytes) -> bytes:
    """The 64 bytes that a quote signs for a statement of `said`."""
    return hashlib.sha512(PREFIX + statement).digest()


@dataclass(frozen=True, slots=True)
class PeerTrust:
    """What a node accepts from a peer beyond its own measurements."""

    more_rtmr0: frozenset[bytes] = frozenset()
    """RTMR0 of the cluster's other sizes of machines, 48 bytes each: firmware measures the size there."""
    insecure_root: bytes | None = None
    """The root (DER) of soft evidence; None: Intel's."""

    def check(self, own: Evidence, peer_quote: bytes, statement: bytes, now: float) -> None:
        """Raises AttestationError unless the quote is an accepted peer's, over this statement.

        own: evidence of this node, whose collateral also applies to the peer's platform. now: Unix time.
        """
        evidence = verify.Evidence(statement, peer_quote, b"", own.collateral)
        verify.check_quote(evidence, self._policy(tdx.parse(own.quote)), PREFIX, now)

    def _policy(self, own: tdx.Report) -> Policy:
        """Pins all measurements. Event logs would add nothing, and are not exchanged."""
        measurements = {name: frozenset({own.fields[name]}) for name in MEASUREMENTS}
        measurements["rtmr0"] |= self.more_rtmr0
        policy = open_policy(self.insecure_root)
        unpinned = tuple(name for name in policy.unpinned if name not in MEASUREMENTS)
        return replace(policy, measurements=measurements, unpinned=unpinned)
