"""Creates users, credentials, sessions, conversation keys, usage and audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates all tables."""
    op.create_table("meta", sa.Column("name", sa.String(32), primary_key=True), sa.Column("value", sa.LargeBinary))
    op.create_table(
        "users",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name_lookup", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("name_sealed", sa.LargeBinary, nullable=False),
        sa.Column("role", sa.String(8), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("limits", sa.String, nullable=False),
        sa.Column("wrapped_sk", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "credentials",
        sa.Column("id", sa.String(32), primary_key=True),
        _user_id(),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("label_sealed", sa.LargeBinary),
        sa.Column("salt", sa.LargeBinary),
        sa.Column("params", sa.String),
        sa.Column("wrapped_umk", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
    )
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.LargeBinary, primary_key=True),
        _user_id(),
        sa.Column("wrapped_umk", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(32), primary_key=True),
        _user_id(),
        sa.Column("wrapped_ck", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("user_id", sa.String(32), primary_key=True),
        sa.Column("credential_id", sa.String(32), primary_key=True),
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt", sa.BigInteger, nullable=False),
        sa.Column("cached", sa.BigInteger, nullable=False),
        sa.Column("output", sa.BigInteger, nullable=False),
    )
    op.create_index("usage_by_day", "usage", ["day"])
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(32), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("object", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("previous_mac", sa.LargeBinary, nullable=False),
    )
    for table in ("credentials", "sessions", "conversations"):
        op.create_index(f"ix_{table}_user_id", table, ["user_id"])


def _user_id() -> sa.Column[str]:
    return sa.Column("user_id", sa.String(32), sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False)
