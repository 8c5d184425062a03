"""The first login of a user, and the first one after a reset, while an administrator knows the password.

That password therefore seals only a placeholder key. When the user chooses a password, the user's key is created (or
opened with the recovery code) and sealed under that password and a new recovery code, which nobody else learns.
"""

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from app.accounts import tables
from app.accounts.credentials import Credential, new_key_id, new_recovery_code, recovery_secret
from app.accounts.deleted_rows import delete_all
from app.accounts.keys import UserKey, new_shared_key
from app.accounts.store import Store
from app.messages.accounts import AccountsError, ChangedPassword
from app.sealing.records import SealError


def choose_key(
    store: Store,
    connection: Connection,
    user_id: str,
    session: Credential,
    recovery_code: str | None,
    *,
    lose_saved: bool,
) -> tuple[UserKey, ChangedPassword]:
    """Creates or recovers the key of a user who chooses a password; returns it, and what to tell the user.

    From now on the session opens that key. After a reset, `recovery_code` recovers the old key; without it,
    `lose_saved` must confirm that saved data is deleted.
    Raises AccountsError: `recovery_code_required`, or `invalid_value` for a wrong code.
    """
    row = connection.execute(select(tables.credentials).where(_code_of(user_id))).one_or_none()
    is_lost = row is not None and recovery_code is None
    if row is not None and recovery_code is not None:
        try:
            key = store.root.unwrap(row.wrapped_umk, recovery_secret(recovery_code), user_id, row.id)
        except SealError:
            raise AccountsError("invalid_value", "That is not your recovery code.", param="recovery_code") from None
    else:
        if is_lost and not lose_saved:
            message = "Give your recovery code, or 'lose_saved': without it what was saved of yours is deleted."
            raise AccountsError("recovery_code_required", message, param="recovery_code")
        key = UserKey.new()
        for table in (tables.responses, tables.conversations):
            connection.execute(delete(table).where(table.c.user_id == user_id))
        delete_all(connection, user_id)
        members = tables.collection_members
        connection.execute(delete(members).where(members.c.user_id == user_id))  # nothing opens these keys any more
        keys = {"wrapped_sk": new_shared_key(key, user_id), "sharing_key": key.sharing_key().public()}
        connection.execute(update(tables.users).where(tables.users.c.id == user_id).values(**keys))
    code = set_recovery_code(store, connection, user_id, key)
    held = tables.sessions.c.token_hash == session.token_hash
    wrapped = key.wrap(store.root, session.secret, user_id, session.id)
    connection.execute(update(tables.sessions).where(held).values(wrapped_umk=wrapped))
    return key, ChangedPassword(code, memory_lost=is_lost, lost_folder=store.root.owner(user_id) if is_lost else None)


def set_recovery_code(store: Store, connection: Connection, user_id: str, key: UserKey) -> str:
    """Replaces the user's recovery code by a new one and returns it."""
    connection.execute(delete(tables.credentials).where(_code_of(user_id)))
    code, credential_id = new_recovery_code(), new_key_id()
    connection.execute(
        insert(tables.credentials).values(
            id=credential_id,
            user_id=user_id,
            kind="recovery",
            wrapped_umk=key.wrap(store.root, recovery_secret(code), user_id, credential_id),
            created=int(store.now()),
        )
    )
    return code


def _code_of(user_id: str) -> ColumnElement[bool]:
    return (tables.credentials.c.user_id == user_id) & (tables.credentials.c.kind == "recovery")
