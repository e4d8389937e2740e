"""Runs the revisions on the connection that `pddpo_ray.journal.database.upgrade` hands over."""

from __future__ import annotations

from alembic import context

from pddpo_ray.journal.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
