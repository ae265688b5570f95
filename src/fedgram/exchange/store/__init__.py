"""The coordinator's store: contributions, their index, the ledger, the running total, and what is published of it."""
