"""Methods that train by gradients, all in the one loop of `fedgram.nets`."""
