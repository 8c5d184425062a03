"""How a service stands with its policy at present: asked anew on a connection of its own, some seconds apart.

A verdict is about a connection's key. A service that was started anew, with other software perhaps, has another key, so
only a new connection tells whether the next request would be let through.
"""

import datetime
import json
import threading
import time
from typing import Any

from redoubt_verify.connections import Verifier
from redoubt_verify.errors import AttestationError
from redoubt_verify.transport import verify_once

CHECK_PERIOD_S = 5.0
"""A new connection at most this often, however many ask."""


class Standing:
    """Of one verifier. Threads may share it."""

    def __init__(self, verifier: Verifier, check_period_s: float = CHECK_PERIOD_S) -> None:
        self._verifier = verifier
        self._check_period_s = check_period_s
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}
        self._next_check_s = 0.0
        """Monotonic time."""
        self._last_refusal: dict[str, Any] | None = None

    def refused(self, error: AttestationError) -> None:
        """Notes that a request was refused: the next who asks is told how it stands then."""
        self._next_check_s = 0.0
        if error.reason != "unreachable":
            self._last_refusal = {"at": self._now(), "reason": error.reason, "why": str(error)}

    def now(self) -> dict[str, Any]:
        """Returns `state` (verified, insecure, refused or unreachable) with what is known, as plain values."""
        with self._lock:
            if time.monotonic() >= self._next_check_s:
                self._next_check_s = time.monotonic() + self._check_period_s
                self._known = self._checked()
            return {**self._known, "last_refusal": self._last_refusal}

    def _checked(self) -> dict[str, Any]:
        policy = self._verifier.policy
        common = {"checked_at": self._now(), "policy_expires": policy.expires.isoformat()}
        try:
            verdict = verify_once(self._verifier)
        except AttestationError as error:
            if error.reason == "unreachable":
                return {"state": "unreachable", "why": str(error), **common}
            self._last_refusal = {"at": self._now(), "reason": error.reason, "why": str(error)}
            return {"state": "refused", "reason": error.reason, "why": str(error), **common}
        made = datetime.datetime.fromisoformat(verdict.verified_at)
        until = min(made + datetime.timedelta(seconds=policy.reverify_after_s), policy.expires)
        state = "insecure" if verdict.insecure else "verified"
        return {"state": state, "holds_until": until.isoformat(), "verdict": json.loads(verdict.to_json()), **common}

    def _now(self) -> str:
        return datetime.datetime.fromtimestamp(self._verifier.now(), datetime.UTC).isoformat(timespec="seconds")
