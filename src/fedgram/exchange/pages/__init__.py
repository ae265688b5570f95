"""Passports, the status of a store, regression tables and descriptives as pages that work offline."""
