"""Backbones, which turn samples into features: named networks, ONNX files, or a module of the user."""
