"""Engines other than the virtual GPU: a CUDA device written in Python, and imported CPU profiles."""
