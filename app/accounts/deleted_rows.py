"""Deletes users' files, batches and collections from the tables. Knows no credential."""

from sqlalchemy import ColumnElement, Connection, delete, select, update

from app.accounts import tables
from app.messages.batches import DOCUMENT_PURPOSES


def hide_files(connection: Connection, which: ColumnElement[bool]) -> None:
    """Deletes files: nobody finds them any more, and `StoredFiles.destroy_some` destroys their parts."""
    connection.execute(update(tables.files).where(which).values(state="deleted", sealed=None))


def hide_documents_files(connection: Connection, user_id: str, which: ColumnElement[bool]) -> None:
    """Deletes the files of a user that documents of collections were read from."""
    documents, files = tables.documents.c, tables.files.c
    read = select(documents.file_id).where(which, documents.state != "deleted")
    hide_files(connection, (files.user_id == user_id) & files.purpose.in_(DOCUMENT_PURPOSES) & files.id.in_(read))


def hide_collections(connection: Connection, which: ColumnElement[bool]) -> None:
    """Deletes collections: their keys are destroyed now, and `StoredCollections.destroy_some` destroys the rest."""
    found = select(tables.collections.c.id).where(which)
    members = tables.collection_members
    connection.execute(delete(members).where(members.c.collection_id.in_(found)))
    connection.execute(update(tables.collections).where(which).values(state="deleted", sealed=None))


def delete_all(connection: Connection, user_id: str) -> None:
    """Deletes all batches, files and collections of a user."""
    connection.execute(delete(tables.batches).where(tables.batches.c.user_id == user_id))
    hide_files(connection, tables.files.c.user_id == user_id)
    hide_collections(connection, tables.collections.c.user_id == user_id)
