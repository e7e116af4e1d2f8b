"""Prints what foretell replaces in a process with this Python's torch, one name per line. Started by path.

Arguments: the options of a capture as JSON, then modules to import in addition to torch.
"""

import contextlib
import importlib
import json
import os
import sys
from types import ModuleType


def main() -> None:
    package = sys.modules["foretell_child"] = ModuleType("foretell_child")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    capture = importlib.import_module("foretell_child.inside").install(json.loads(sys.argv[1]))
    for name in ("torch", *sys.argv[2:]):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].cuda.init()
    listed = [{"what": str(each), "by": each.by} for each in capture.patches]
    capture.patches.undo()
    print(json.dumps(listed))


if __name__ == "__main__":
    main()
