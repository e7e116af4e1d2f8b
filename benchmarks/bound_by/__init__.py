"""Whether foretell says rightly what holds a script up: the GPU, the host, or the data loader (scripts.py)."""
