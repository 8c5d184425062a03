"""A login's row of the audit has the client's address, until it is forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """From 0005, whose rows have none."""
    for name in ("address_sealed", "address_digest"):
        op.add_column("audit", sa.Column(name, sa.LargeBinary))
