"""Statistics with their uncertainty, computed from plain arrays: sums, scores and outcomes."""
