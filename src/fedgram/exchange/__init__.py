"""Studies carried out by files: parties sign and send them; the coordinator keeps, adds up and publishes.

Nothing here needs a server: every file can be mailed or carried.
"""
