"""Deletes users' files and batches from the tables. Knows no credential."""

from sqlalchemy import ColumnElement, Connection, delete, update

from app.accounts import tables


def hide_files(connection: Connection, which: ColumnElement[bool]) -> None:
    """Deletes files: nobody finds them any more, and `StoredFiles.destroy_some` destroys their parts."""
    connection.execute(update(tables.files).where(which).values(state="deleted", sealed=None))


def delete_batches(connection: Connection, user_id: str) -> None:
    """Deletes all batches and files of a user."""
    connection.execute(delete(tables.batches).where(tables.batches.c.user_id == user_id))
    hide_files(connection, tables.files.c.user_id == user_id)
