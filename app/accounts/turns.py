"""Which stored conversations a turn is running in. In memory only; knows no table.

Each turn also has a number in the database, by which what it stores is refused when another one has begun since.
"""

import hashlib
from dataclasses import dataclass, replace

from app.messages.accounts import AccountsError

LONGEST_TURN_S = 3600.0
"""Then another turn may begin: an ingress may have lost sight of the first one."""


@dataclass(frozen=True, slots=True)
class _Turn:
    ingress: str
    number: int
    secret_hash: bytes
    """Of the credential that began it."""
    until_s: float
    response_id: str


class Turns:
    """At most one of each conversation. Times are Unix seconds."""

    def __init__(self) -> None:
        self._of_conversation: dict[str, _Turn] = {}

    def go_on_from(self, before: "Turns") -> None:
        """Those that run at another owner of the database, which has let it go."""
        self._of_conversation = before._of_conversation

    def check_none(self, conversation_id: str, now_s: float) -> None:
        """Raises AccountsError: `conversation_conflict`."""
        turn = self._of_conversation.get(conversation_id)
        if turn is not None and turn.until_s > now_s:
            message = "A response is being made in this conversation. Try again when it has ended."
            raise AccountsError("conversation_conflict", message)

    def response_of(self, conversation_id: str, now_s: float) -> str | None:
        """The id of the response that is being made in it."""
        turn = self._of_conversation.get(conversation_id)
        return None if turn is None or turn.until_s <= now_s else turn.response_id

    def begin(
        self, conversation_id: str, ingress: str, number: int, secret: str, response_id: str, now_s: float
    ) -> None:
        """After `check_none`."""
        running = {key: turn for key, turn in self._of_conversation.items() if turn.until_s > now_s}
        running[conversation_id] = _Turn(ingress, number, _hash(secret), now_s + LONGEST_TURN_S, response_id)
        self._of_conversation = running

    def end(self, conversation_id: str, number: int, secret: str) -> None:
        """That turn alone, and only with the credential that began it, which need not be right any more."""
        turn = self._of_conversation.get(conversation_id)
        if turn is not None and (turn.number, turn.secret_hash) == (number, _hash(secret)):
            del self._of_conversation[conversation_id]

    def renumber(self, conversation_id: str, number: int, new_number: int) -> None:
        """That turn has changed its conversation, and goes on."""
        turn = self._of_conversation.get(conversation_id)
        if turn is not None and turn.number == number:
            self._of_conversation[conversation_id] = replace(turn, number=new_number)

    def lost(self, ingress: str) -> None:
        """An ingress has ended, and with it its turns."""
        self._of_conversation = {key: turn for key, turn in self._of_conversation.items() if turn.ingress != ingress}


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
