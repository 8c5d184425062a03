"""Alembic's migrations of the tables, one file a version; `app.accounts.database` runs them."""
