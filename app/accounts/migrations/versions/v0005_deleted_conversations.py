"""A deleted conversation is hidden for some seconds, in which it can be brought back."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """From 0004, which has none of them."""
    op.add_column("conversations", sa.Column("deleted", sa.BigInteger))
    op.create_index("conversations_by_deletion", "conversations", ["deleted"])
