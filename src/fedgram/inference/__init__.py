"""Statistics with their uncertainty, computed from plain arrays: regression tables, sums, scores and outcomes."""
