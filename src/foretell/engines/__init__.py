"""Ways to a trace other than the virtual GPU: a CUDA device written in Python, and an imported CPU profile."""
