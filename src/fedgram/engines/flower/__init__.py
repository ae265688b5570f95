"""Flower carries the messages: between machines, or simulated ones on Ray. Needs the extra `flower`.

`grid` is the server's way to the nodes, `node` the adapter that performs any method's steps there, `app` the two apps
of a deployment, `supernode` a node's programs, `simulation` the engine `flower-sim`. Importing this package imports
nothing of Flower.
"""
