"""A workload of the zoo, and in a line of its output what torch.cuda.memory._snapshot() says at its end."""

from __future__ import annotations

import base64
import pickle
import runpy
import sys
from pathlib import Path

import torch

if history := sys.modules.get("foretell_child.inside.watch.history"):
    history.EARLY_STEPS = 0  # or foretell takes PyTorch's history away after each of the first steps
workload = Path(sys.argv[1])
sys.path.insert(0, str(workload.parent))
sys.argv = [str(workload)]
held = []
common = __import__("common")
# Frames that are kept keep their tensors: what the workload holds when it reports is held until the process ends.
common.report = lambda: held.append(sys._getframe(1))
workload_globals = runpy.run_path(str(workload), run_name="__main__")
assert held, f"{workload} does not report"
print("SNAPSHOT", base64.b64encode(pickle.dumps(torch.cuda.memory._snapshot())).decode(), flush=True)
