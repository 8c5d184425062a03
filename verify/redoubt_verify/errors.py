"""How a check can fail. Messages name what was expected and found; they never quote prompts or nonces."""

REASONS = {
    "unreachable": "no connection, no TLS 1.3, no answer in time, or no quote to be had now",
    "origin": "another scheme, host or port than the pinned one, or a redirect",
    "malformed": "the answer, the statement or the quote is not of the protocol's form",
    "too_large": "the answer or a part of it is larger than the protocol allows",
    "quote_signature": "the quote is not signed by a genuine, unrevoked platform under the trusted root",
    "collateral_missing": "there is nothing to check the platform's certificates with",
    "collateral_expired": "the collateral is out of its dates, or older than the policy allows",
    "tcb": "the platform's status, advisories, evaluation number or identity is not one that the policy allows",
    "debug_td": "the host can read this trust domain: its debug attribute is set",
    "measurement": "a measurement, an attribute or the image is not one that the policy allows",
    "config_digest": "MR_CONFIG_ID (the initdata) or the service's configuration is not one that the policy allows",
    "event_log": "the event log is missing, or does not replay to the quoted registers",
    "report_data": "the quote was not made for this statement",
    "nonce": "the statement answers somebody else's question, or an old one",
    "key_mismatch": "the connection's TLS key is not the one in the statement",
    "model": "a model is served that the policy does not allow",
    "policy_expired": "the policy is past its date",
}
"""The meaning of each `AttestationError.reason`."""


_MOST_LETTERS = 600


class AttestationError(Exception):
    """The service was refused: nothing but the attestation request was sent to it on this connection."""

    def __init__(self, reason: str, message: str) -> None:
        """reason: a key of REASONS."""
        assert reason in REASONS
        super().__init__(f"{reason}: {printable(message)}")
        self.reason = reason


def printable(text: str) -> str:
    """Text that a server may have written, for a terminal: without control characters, and not endless."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_LETTERS])


class PolicyError(ValueError):
    """The policy file can't be used; the message says where it is wrong."""
