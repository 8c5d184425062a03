"""The Alembic migrations, one file a version; `app.accounts.database` runs them."""
