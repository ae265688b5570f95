"""Flower carries the messages: between machines, or simulated ones on Ray. Needs the extra `flower`.

`grid` is the server's way to the nodes, `node` the one adapter that performs any method's steps there, `app` what a
deployment runs, `simulation` the engine `flower-sim`. Importing this package imports nothing of Flower.
"""
