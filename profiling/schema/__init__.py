"""The store's schema: Alembic's environment and its revisions, one file each."""
