"""Adds the client's address to the audit row of a login, until it is deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds columns; existing rows have no address."""
    for name in ("address_sealed", "address_digest"):
        op.add_column("audit", sa.Column(name, sa.LargeBinary))
