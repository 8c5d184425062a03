"""Checks that a Redoubt service runs in a TDX trust domain of the expected software, before the first word goes to it.

    OpenAI(base_url=URL, http_client=redoubt_verify.client(URL, "policy.toml"))

Imports nothing of the service that it checks. `AttestationError.reason` says why a service was refused.
"""

from redoubt_verify.errors import REASONS, AttestationError, PolicyError
from redoubt_verify.policy import Policy
from redoubt_verify.transport import async_client, client
from redoubt_verify.verify import Verdict

__all__ = ["REASONS", "AttestationError", "Policy", "PolicyError", "Verdict", "async_client", "client"]
