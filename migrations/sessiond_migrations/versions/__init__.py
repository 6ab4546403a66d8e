"""One module per revision; Alembic loads them by path."""
