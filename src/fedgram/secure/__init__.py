"""Keys, sealed bytes, and secure sums: a coordinator learns the sum of what parties send, and nothing else.

Nothing here knows clients, methods or files. `docs/guides/secure-sums.md` has the protocol and its threat model.
"""
