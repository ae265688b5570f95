"""Data sets that others publish: where they are, how they are fetched, how they lie on disk."""
