"""Adds stored conversations with items, and stored responses."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds columns and tables; existing conversations stay, and are not stored ones."""
    for column in (
        sa.Column("items", sa.Integer),
        sa.Column("seq", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("updated_us", sa.BigInteger),
        sa.Column("sealed", sa.LargeBinary),
    ):
        op.add_column("conversations", column)
    op.create_index("conversations_by_update", "conversations", ["user_id", "updated_us"])
    op.create_index("conversations_bytes", "conversations", ["user_id", "bytes"])
    op.create_table(
        "items",
        sa.Column("conversation_id", sa.String(32), _of("conversations"), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("items_by_id", "items", ["conversation_id", "id"], unique=True)
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(32), _of("users"), nullable=False),
        sa.Column("conversation_id", sa.String(32), _of("conversations")),
        sa.Column("previous_id", sa.String(64)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed_input", sa.LargeBinary, nullable=False),
        sa.Column("sealed_response", sa.LargeBinary, nullable=False),
    )
    op.create_index("responses_bytes", "responses", ["user_id", "bytes"])
    for column_name in ("conversation_id", "created"):
        op.create_index(f"ix_responses_{column_name}", "responses", [column_name])


def _of(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
