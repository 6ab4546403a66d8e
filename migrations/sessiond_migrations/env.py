"""Run by Alembic. The caller passes an engine as the attribute ``engine``."""

from __future__ import annotations

from alembic import context

from sessiond.registry.migrating import alone_in_migration
from sessiond.registry.models import Base


def _run() -> None:
    with (
        context.config.attributes["engine"].connect() as connection,
        alone_in_migration(connection),
    ):
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            transaction_per_migration=True,
            transactional_ddl=True,
            render_as_batch=True,
            compare_server_default=True,
        )
        with context.begin_transaction():
            context.run_migrations()


_run()
