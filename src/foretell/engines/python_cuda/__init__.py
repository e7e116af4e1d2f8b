"""A CUDA device written in Python, for a torch that has none: `foretell run --engine cpu` (device.py starts it)."""
