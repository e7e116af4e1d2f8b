"""Starts a capture when a Python interpreter starts.

Does nothing without `FORETELL_CAPTURE`. Otherwise foretell's folder becomes the package `foretell_child`: loaded by
path, because the interpreter may belong to an environment without foretell, and not called `foretell`, because the
script may import that itself. The `sitecustomize` that this file hides is run afterwards. Every Python process of the
script runs this, so nothing heavy is imported.
"""

import os
import sys


def _start_capture() -> None:
    import json
    from types import ModuleType

    package = sys.modules["foretell_child"] = ModuleType("foretell_child")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    from foretell_child import inside

    inside.install(json.loads(os.environ["FORETELL_CAPTURE"]))


def _run_the_hidden_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("FORETELL_CAPTURE"):
    try:
        _start_capture()
    except Exception as error:  # the user's interpreter must start even if foretell fails
        print(f"foretell: could not start recording: {type(error).__name__}: {error}", file=sys.stderr)

_run_the_hidden_sitecustomize()
