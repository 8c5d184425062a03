"""Stored responses, for the user of a credential. Texts arrive sealed and are not opened here.

A response in a conversation lives as long as the conversation; any other one for some days.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, literal, select, update

from app.accounts import tables
from app.accounts.logins import Authenticated, Logins
from app.accounts.store import Store
from app.accounts.stored_conversations import (
    StoredConversations,
    check_id,
    conversation_id_of,
    known_id,
    of_no_hidden,
    turn_is_over,
)
from app.accounts.turns import LONGEST_TURN_S
from app.messages.accounts import AccountsError
from app.messages.stored import NewItem, StoredResponse

MOST_HISTORY = 2048
"""The maximum length of a chain of previous responses."""
_DAY_S = 86_400


class StoredResponses:
    """Implements the responses of `app.messages.stored.ConversationStore`; every method raises AccountsError."""

    def __init__(self, store: Store, logins: Logins, conversations: StoredConversations) -> None:
        self._store = store
        self._logins = logins
        self._conversations = conversations

    def add(self, secret: str, response: StoredResponse, items: Sequence[NewItem], turn: int | None) -> None:
        """Stores a response and its conversation's items in one transaction; the turn ends in any case.

        If that is refused, the response is no longer open, since nobody will write it.
        """
        try:
            with self._store.transaction() as connection:
                known = self._logins.authenticate(connection, secret)
                row_id = self._append(connection, known, response, items, turn)
                self._insert(connection, known, response, row_id)
        except AccountsError:
            self._close(response)
            raise
        finally:
            if response.conversation_id is not None and turn is not None:
                self._conversations.end_turn(secret, response.conversation_id, turn)

    def open(self, secret: str, ingress: str, response: StoredResponse) -> None:
        """Stores a response as open, until `add` or until its ingress ends."""
        with self._store.transaction() as connection:
            known = self._logins.authenticate(connection, secret)
            row_id = None
            if response.conversation_id is not None:
                row_id = str(self._conversations.row(connection, known, response.conversation_id).id)
            self._insert(connection, known, response, row_id, ingress)

    def ingress_lost(self, ingress: str) -> None:
        """Closes the open responses of an ingress that has ended."""
        with self._store.transaction() as connection:
            mine = tables.responses.c.ingress == ingress
            connection.execute(update(tables.responses).where(mine).values(ingress=None))

    def other_ingresses_lost(self, living: Collection[str]) -> None:
        """Closes the open responses of all ingresses but the living ones."""
        with self._store.transaction() as connection:
            theirs = tables.responses.c.ingress.is_not(None) & tables.responses.c.ingress.not_in(living)
            connection.execute(update(tables.responses).where(theirs).values(ingress=None))

    def get(self, secret: str, response_id: str) -> StoredResponse:
        with self._store.transaction() as connection:
            mine = tables.responses.c.user_id == self._logins.authenticate(connection, secret).identity.user_id
            mine &= of_no_hidden(tables.responses.c)
            found = select(tables.responses).where(mine, tables.responses.c.id == known_id(response_id))
            row = connection.execute(found).one_or_none()
            if row is None:
                raise _no_such_response()
            return self._response(row)

    def history(self, secret: str, response_id: str) -> Sequence[StoredResponse]:
        """Returns the response and those before it, oldest first; the newest `MOST_HISTORY` at most."""
        with self._store.transaction() as connection:
            user_id = self._logins.authenticate(connection, secret).identity.user_id
            responses, older = tables.responses.c, tables.responses.alias("older").c
            first = select(responses.id, responses.previous_id, literal(1).label("nth"))
            mine = (responses.user_id == user_id) & of_no_hidden(responses)
            chain = first.where(mine, responses.id == known_id(response_id)).cte("chain", recursive=True)
            link = (older.id == chain.c.previous_id) & (older.user_id == user_id) & (chain.c.nth < MOST_HISTORY)
            link &= of_no_hidden(older)
            chain = chain.union_all(select(older.id, older.previous_id, chain.c.nth + 1).where(link))
            # Each response once: a client that chooses ids could make a cycle.
            places = select(chain.c.id, func.min(chain.c.nth).label("nth")).group_by(chain.c.id).subquery()
            found = select(tables.responses).join(places, places.c.id == responses.id).order_by(places.c.nth.desc())
            rows = connection.execute(found).all()
        if not rows:
            raise _no_such_response()
        return [self._response(row) for row in rows]

    def delete(self, secret: str, response_id: str) -> None:
        with self._store.transaction() as connection:
            mine = tables.responses.c.user_id == self._logins.authenticate(connection, secret).identity.user_id
            found = tables.responses.c.id == known_id(response_id)
            if not connection.execute(delete(tables.responses).where(mine, found)).rowcount:
                raise _no_such_response()

    def delete_old(self) -> int:
        """Deletes old responses of all users that are in no conversation; returns how many."""
        responses = tables.responses.c
        before_s = int(self._store.now()) - self._store.settings.responses_days * _DAY_S
        old = responses.conversation_id.is_(None) & (responses.created <= before_s)
        with self._store.transaction() as connection:
            return connection.execute(delete(tables.responses).where(old)).rowcount

    def _close(self, response: StoredResponse) -> None:
        """Closes a response whatever the credential: an expired one may be why it was refused."""
        if response.is_open:
            with self._store.transaction() as connection:
                found = tables.responses.c.id == known_id(response.id)
                connection.execute(update(tables.responses).where(found).values(ingress=None))

    def _append(
        self,
        connection: Connection,
        known: Authenticated,
        response: StoredResponse,
        items: Sequence[NewItem],
        turn: int | None,
    ) -> str | None:
        """Appends items to the response's conversation; returns the id of its row."""
        if response.conversation_id is None:
            if items or turn is not None:
                raise AccountsError("invalid_value", "Only a conversation has items and turns.")
            return None
        row = self._conversations.row(connection, known, response.conversation_id)
        if row.seq != turn:
            raise turn_is_over()
        self._conversations.append(connection, known, row, items)
        return str(row.id)

    def _insert(
        self,
        connection: Connection,
        known: Authenticated,
        response: StoredResponse,
        row_id: str | None,
        ingress: str | None = None,
    ) -> None:
        """ingress: the one that will write the response; None: it has ended, and replaces its open row."""
        check_id(response.id)
        if response.previous_id is not None:
            check_id(response.previous_id)
        size_bytes = len(response.sealed_input) + len(response.sealed_response)
        responses = tables.responses.c
        if ingress is None:
            opened = (responses.id == response.id) & (responses.user_id == known.identity.user_id)
            found = connection.execute(delete(tables.responses).where(opened, responses.ingress.is_not(None))).rowcount
            if response.is_open and not found:  # it was deleted, or its ingress counts as ended
                raise _no_such_response()
        self._conversations.check_room(connection, known, size_bytes)
        same = select(responses.id).where(responses.id == response.id)
        if connection.execute(same).first() is not None:
            raise AccountsError("conflict", "There is a response of that id already.")
        connection.execute(
            insert(tables.responses).values(
                id=response.id,
                user_id=known.identity.user_id,
                conversation_id=row_id,
                previous_id=response.previous_id,
                created=int(self._store.now()),
                bytes=size_bytes,
                sealed_input=response.sealed_input,
                sealed_response=response.sealed_response,
                ingress=ingress,
            )
        )

    def _response(self, row: Row[Any]) -> StoredResponse:
        return StoredResponse(
            id=row.id,
            created=row.created,
            conversation_id=None if row.conversation_id is None else conversation_id_of(row.conversation_id),
            previous_id=row.previous_id,
            sealed_input=row.sealed_input,
            sealed_response=row.sealed_response,
            is_open=row.ingress is not None and row.created + LONGEST_TURN_S > self._store.now(),
        )


def _no_such_response() -> AccountsError:
    return AccountsError("not_found", "There is no such response.")
