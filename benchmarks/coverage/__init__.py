"""Breadth, measured: two training steps of a thousand models, each really computed on the CPU and once on the virtual
GPU. `make coverage` runs it and writes docs/coverage.md.
"""

import sys

# transformers imports it if it is there, and it initialises CUDA: nothing could be forked any more.
sys.modules.setdefault("deepspeed", None)  # type: ignore[arg-type]
