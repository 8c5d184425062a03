"""Which stored conversations have a running turn. In memory only; knows no table.

Each turn also has a number in the database, so that results of a turn are refused once another one has begun.
"""

import hashlib
from dataclasses import dataclass, replace

from app.messages.accounts import AccountsError

LONGEST_TURN_S = 3600.0
"""After this time another turn may begin: an ingress may have lost the first one."""


@dataclass(frozen=True, slots=True)
class _Turn:
    ingress: str
    number: int
    secret_hash: bytes
    """The hash of the credential that began the turn."""
    until_s: float
    response_id: str


class Turns:
    """The running turns, at most one a conversation. Times are Unix seconds."""

    def __init__(self) -> None:
        self._of_conversation: dict[str, _Turn] = {}

    def take_over(self, before: "Turns") -> None:
        """Takes over the running turns of the previous owner of the database."""
        self._of_conversation = before._of_conversation

    def check_none(self, conversation_id: str, now_s: float) -> None:
        """Raises AccountsError `conversation_conflict` if a turn is running."""
        turn = self._of_conversation.get(conversation_id)
        if turn is not None and turn.until_s > now_s:
            message = "A response is being made in this conversation. Try again when it has ended."
            raise AccountsError("conversation_conflict", message)

    def response_of(self, conversation_id: str, now_s: float) -> str | None:
        """Returns the id of the response that is being generated in the conversation."""
        turn = self._of_conversation.get(conversation_id)
        return None if turn is None or turn.until_s <= now_s else turn.response_id

    def begin(
        self, conversation_id: str, ingress: str, number: int, secret: str, response_id: str, now_s: float
    ) -> None:
        """Begins a turn; call `check_none` first."""
        running = {key: turn for key, turn in self._of_conversation.items() if turn.until_s > now_s}
        running[conversation_id] = _Turn(ingress, number, _hash(secret), now_s + LONGEST_TURN_S, response_id)
        self._of_conversation = running

    def end(self, conversation_id: str, number: int, secret: str) -> None:
        """Ends that turn only, and only with the credential that began it, even if it has expired since."""
        turn = self._of_conversation.get(conversation_id)
        if turn is not None and (turn.number, turn.secret_hash) == (number, _hash(secret)):
            del self._of_conversation[conversation_id]

    def renumber(self, conversation_id: str, number: int, new_number: int) -> None:
        """Renumbers a running turn that has changed its conversation."""
        turn = self._of_conversation.get(conversation_id)
        if turn is not None and turn.number == number:
            self._of_conversation[conversation_id] = replace(turn, number=new_number)

    def ingress_lost(self, ingress: str) -> None:
        """Drops the turns of an ingress that has ended."""
        self._of_conversation = {key: turn for key, turn in self._of_conversation.items() if turn.ingress != ingress}


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
