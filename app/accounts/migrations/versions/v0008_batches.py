"""Adds users' files and batches."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Adds tables."""
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(32), _of("users"), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("parts", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary),
    )
    op.create_index("files_by_creation", "files", ["user_id", "created_us"])
    op.create_index("files_by_state", "files", ["state"])
    op.create_index("files_by_expiry", "files", ["expires"])
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(64), _of("files"), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(32), _of("users"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("input_id", sa.String(64), nullable=False),
        sa.Column("output_id", sa.String(64), nullable=False),
        sa.Column("error_id", sa.String(64), nullable=False),
        sa.Column("output_seconds", sa.BigInteger),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("completed", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("times", sa.String, nullable=False),
        sa.Column("claim", sa.BigInteger, nullable=False),
        sa.Column("leased_until", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("batches_by_creation", "batches", ["user_id", "created_us"])
    op.create_index("batches_by_state", "batches", ["state"])


def _of(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
