"""Adds the device to a session, sealed under the user's key."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Adds a column; existing sessions have no device."""
    op.add_column("sessions", sa.Column("device_sealed", sa.LargeBinary))
