"""Adds collections of documents, and users' keys for what is shared with them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Adds tables and a column."""
    op.add_column("users", sa.Column("sharing_key", sa.LargeBinary))
    op.create_table(
        "collections",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(32), _of("users"), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("changes", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary),
    )
    op.create_index("collections_by_user", "collections", ["user_id"])
    op.create_index("collections_by_state", "collections", ["state"])
    op.create_table(
        "collection_members",
        sa.Column("collection_id", sa.String(64), _of("collections"), primary_key=True),
        sa.Column("user_id", sa.String(32), _of("users"), primary_key=True),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    )
    op.create_index("collection_members_by_user", "collection_members", ["user_id"])
    op.create_table(
        "documents",
        sa.Column("collection_id", sa.String(64), _of("collections"), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("leased_until", sa.BigInteger, nullable=False),
        sa.Column("parts", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary),
    )
    op.create_index("documents_by_file", "documents", ["collection_id", "file_id"])
    op.create_index("documents_by_state", "documents", ["state"])
    op.create_table(
        "passages",
        sa.Column("collection_id", sa.String(64), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["collection_id", "number"], ["documents.collection_id", "documents.number"], ondelete="CASCADE"
        ),
    )


def _of(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
