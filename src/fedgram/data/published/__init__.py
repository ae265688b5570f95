"""Data sets that others publish: their names, where to get them, their layouts, and their copies in the cache."""
