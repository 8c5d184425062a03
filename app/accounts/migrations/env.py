"""The script that Alembic runs; the connection comes from `app.accounts.database`."""

from alembic import context

from app.accounts.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
