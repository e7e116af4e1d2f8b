"""A warm process: torch and what else is asked for are imported once, and every run is a fork of it.

Started by its path in the environment of a capture, with the modules to import as arguments; foretell need not be
installed there, so: standard library and torch only. Each line of its input is a run (`foretell.capture.warm`), each
line of its output how one ended. CUDA is never initialised here, only in the forks.

The one difference from a process of its own: the hooks are installed after the import of torch, not before it.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import resource
import runpy
import select
import signal
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, NoReturn

# Packages ask while they are imported whether there is a GPU. So asked, torch does not initialise CUDA to answer.
ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
INITIALISES_CUDA = "deepspeed"
"""Others import it when it is installed, and its import makes a CUDA context, which no fork could use."""
HOOKS = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ[ASKS_NVML] = "1"
    inside = load_hooks()
    import_all(sys.argv[1:])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), inside)), file=answers, flush=True)


def load_hooks() -> Any:
    spec = spec_from_file_location(
        "foretell_inside", os.path.join(HOOKS, "__init__.py"), submodule_search_locations=[HOOKS]
    )
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules["foretell_inside"] = package
    spec.loader.exec_module(package)
    return package


def import_all(modules: list[str]) -> None:
    """What every run would import, so that the forks share it."""
    import torch

    importlib.import_module("foretell_inside.fake_cuda.packages").complete_torchvision(torch)
    sys.modules[INITIALISES_CUDA] = None  # type: ignore[assignment]
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: True  # it will be, in the forks; packages ask once and remember
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what the first optimizer of a process imports
    for name in modules:
        with contextlib.suppress(ImportError):  # the run that needs it fails, and says so
            importlib.import_module(name)
    torch.cuda.is_available = is_available
    del sys.modules[INITIALISES_CUDA]
    for name in ("torch_hooks", "overlay", "offline"):
        importlib.import_module(f"foretell_inside.{name}")


def run(job: dict[str, Any], inside: Any) -> dict[str, Any]:
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        in_fork(job, inside)
    deadline = None if job["timeout_seconds"] is None else started + job["timeout_seconds"]
    is_timed_out = not has_ended(child, deadline)
    if is_timed_out:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {
        "exit_status": os.waitstatus_to_exitcode(status),
        "is_timed_out": is_timed_out,
        "seconds": time.monotonic() - started,
    }


def has_ended(child: int, deadline: float | None) -> bool:
    handle = os.pidfd_open(child)
    try:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def check_card(total_bytes: int) -> None:
    """The card is read once: an import that asked for it before the fork would have fixed it for all runs. The CPU
    engine has no such card."""
    if not hasattr(ctypes.CDLL(None), "foretell_card"):
        return
    name, total, context = ctypes.create_string_buffer(256), ctypes.c_int64(), ctypes.c_int64()
    ctypes.CDLL(None).foretell_card(name, len(name), ctypes.byref(total), ctypes.byref(context))
    if total.value != total_bytes:
        print(f"CUDA was touched before the fork: the card has {total.value} bytes, not {total_bytes}", flush=True)
        os._exit(70)


def in_fork(job: dict[str, Any], inside: Any) -> NoReturn:
    """Runs the script as a process of its own would: exceptions go through sys.excepthook, and exit handlers run."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((null, 0), (output, 1), (output, 2)):
        os.dup2(ours, theirs)
    del os.environ[ASKS_NVML]
    for name, value in job["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    check_card(job["total_bytes"])
    sys.argv[:] = job["argv"]
    sys.path[0] = os.path.dirname(os.path.abspath(job["argv"][0]))
    code = 0
    try:
        inside.install(json.loads(os.environ["FORETELL_CAPTURE"]))
        runpy.run_path(job["argv"][0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not os._exit: the native log is written by a destructor. Not sys.exit: taking Python apart is slow.
    ctypes.PyDLL(None).exit(code)
    raise AssertionError("exit returned")


if __name__ == "__main__":
    main()
