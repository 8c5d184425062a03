"""Allows a response to be stored before it has ended."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds a column; all existing responses have ended."""
    op.add_column("responses", sa.Column("ingress", sa.String(64)))
