"""Adds to a document of a collection the batch that it was added with."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Adds a column; existing documents are of no batch."""
    op.add_column("documents", sa.Column("batch_id", sa.String(64)))
