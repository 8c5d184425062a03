"""Responses may be stored before they have ended."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """From 0003, all of whose responses have ended."""
    op.add_column("responses", sa.Column("ingress", sa.String(64)))
