"""Gives conversations names, as MACs, and the time of their last use."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Recreates the table: revision 0001 never filled it."""
    op.drop_table("conversations")
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("user_id", sa.String(32), sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name_mac", sa.LargeBinary, nullable=False),
        sa.Column("wrapped_ck", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_conversations_user_id", "conversations", ["user_id"])
    op.create_index("conversations_by_name", "conversations", ["user_id", "name_mac"], unique=True)
