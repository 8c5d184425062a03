"""How the nodes of a confidential cluster prove themselves to each other, before one takes the other in.

A node's quote signs which role it has, a nonce of each side, its own key and the key of the other side as it saw it. So
a quote is good for one exchange, in one direction, over one channel: a node cannot be shown its own, and nobody can
pass one on. A peer is taken when all that is measured of it equals what is measured here, so no policy has to name its
own digest: nodes of one cluster run one image with one configuration. `redoubt_verify` checks the quotes.
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
"""The roles, as quotes name them."""


def said(role: bytes, *, head_nonce: bytes, worker_nonce: bytes, own_spki: bytes, peer_spki: bytes) -> bytes:
    """What a node's quote is made for. SPKIs: SubjectPublicKeyInfo in DER, which says its own length."""
    assert role in (HEAD, WORKER)
    assert len(head_nonce) == len(worker_nonce) == NONCE_BYTES
    return role + head_nonce + worker_nonce + own_spki + peer_spki


def report_data(statement: bytes) -> bytes:
    """The 64 bytes that a quote signs for what `said` returns."""
    return hashlib.sha512(PREFIX + statement).digest()


@dataclass(frozen=True, slots=True)
class PeerTrust:
    """What a node takes from a peer beyond what is measured of itself."""

    more_rtmr0: frozenset[bytes] = frozenset()
    """RTMR0 of the cluster's other sizes of machines, 48 bytes each: firmware measures the size there."""
    insecure_root: bytes | None = None
    """The root (DER) of soft evidence; None: Intel's."""

    def check(self, own: Evidence, peer_quote: bytes, statement: bytes, now: float) -> None:
        """Raises AttestationError unless the quote is of a peer that said this.

        own: evidence of this node, whose collateral also judges the peer's platform. now: Unix time.
        """
        evidence = verify.Evidence(statement, peer_quote, b"", own.collateral)
        verify.check_quote(evidence, self._policy(tdx.parse(own.quote)), PREFIX, now)

    def _policy(self, own: tdx.Report) -> Policy:
        """All measurements are pinned. Event logs say nothing more then, and are not exchanged."""
        measurements = {name: frozenset({own.fields[name]}) for name in MEASUREMENTS}
        measurements["rtmr0"] |= self.more_rtmr0
        policy = open_policy(self.insecure_root)
        unpinned = tuple(name for name in policy.unpinned if name not in MEASUREMENTS)
        return replace(policy, measurements=measurements, unpinned=unpinned)
