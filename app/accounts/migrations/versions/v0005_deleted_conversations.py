"""Hides a deleted conversation for some seconds, in which the deletion can be undone."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Adds a column; no existing conversation is deleted."""
    op.add_column("conversations", sa.Column("deleted", sa.BigInteger))
    op.create_index("conversations_by_deletion", "conversations", ["deleted"])
