"""Adds an index over a collection's documents in the order in which they are listed."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Adds an index; without it each part of a list sorts all documents of the collection."""
    op.create_index("documents_by_creation", "documents", ["collection_id", "created_us", "file_id"])
