"""Turns the start of a Python interpreter into the start of a capture.

`FORETELL_CAPTURE` absent: nothing happens. Present: the package next door (`capture/inside`) is loaded by its path,
because the interpreter may belong to an environment in which foretell is not installed. The `sitecustomize` this file
hides is run afterwards. Every Python process the script starts comes through here, so nothing heavy is imported.
"""

import os
import sys


def _start_capture() -> None:
    import json
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inside")
    spec = spec_from_file_location(
        "foretell_inside", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None, folder
    assert spec.loader is not None, folder
    package = module_from_spec(spec)
    sys.modules["foretell_inside"] = package
    spec.loader.exec_module(package)
    package.install(json.loads(os.environ["FORETELL_CAPTURE"]))


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
    except Exception as error:  # the user's interpreter starts whatever happens to us
        print(f"foretell: the capture could not start: {type(error).__name__}: {error}", file=sys.stderr)

_run_the_hidden_sitecustomize()
