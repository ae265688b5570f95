"""How a server and its clients talk: methods and steps, agreement, replies and what is checked of them, fits."""
