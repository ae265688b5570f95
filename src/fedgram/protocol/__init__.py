"""Conversation of a server and its clients: methods and steps, agreement, replies and their checks, fits."""
