"""Studies carried out by files: what a party signs and sends, and what the coordinator keeps, adds up and publishes.

Nothing here needs a server: every file can be mailed or carried. Only the command line stands above.
"""
