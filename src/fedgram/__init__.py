"""fedgram: federated learning in one message."""

__version__ = "0.1.0"
