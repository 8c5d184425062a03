"""Signatures of thoughts, as Anthropic's API has them: clients hand a thought back with its signature, unchanged.

A thought is the client's own, so nothing is verified. One that the client asked not to see comes back in its signature.
"""

import base64
import binascii
from typing import Final

SIGNATURE: Final = "redoubt"
"""Of a thought that was shown. Clients take an empty one for a thought that was broken off."""
_HIDDEN: Final = f"{SIGNATURE}."


def signature_of(thought: str, *, is_shown: bool) -> str:
    """Returns the signature of a thought; it has the thought itself if that is not shown."""
    return SIGNATURE if is_shown else _HIDDEN + base64.b64encode(thought.encode()).decode()


def thought_in(signature: str | None) -> str:
    """Returns the thought that a signature has; empty if it has none, as those of other services."""
    if signature is None or not signature.startswith(_HIDDEN):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_HIDDEN), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
