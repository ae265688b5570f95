"""Methods: one file each, reading like its paper's algorithm.

A file that stands here is found by that alone, and read when one of its methods is asked for; so nothing is imported
here. `protocol` says what a method is.
"""

from fedgram.protocol.registry import registry

registry.discover(__name__, __path__)
