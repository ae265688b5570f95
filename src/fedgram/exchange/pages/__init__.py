"""Passports of files and the status of a store, as values and as pages that work offline."""
