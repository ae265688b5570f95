"""Shared helpers of tests: made-up data, processes, a browser."""
