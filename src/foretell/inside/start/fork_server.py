"""A warm process: torch and what else is asked for are imported once, and every run is a fork of it.

Started by its path (`foretell.runs.warm`); foretell need not be installed there, so: standard library and torch only.
Each line of its input is a run, answered by two lines: the fork's pid, and how it ended. Whoever asks keeps the time
and ends what takes too long; when the input ends, so does the fork, and this process. CUDA is never initialised here,
only in the forks.

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
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

# Packages ask while they are imported whether there is a GPU. So asked, torch does not initialise CUDA to answer.
ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
INITIALISES_CUDA = "deepspeed"
"""Others import it when it is installed, and its import makes a CUDA context, which no fork could use."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PR_SET_PDEATHSIG = 1
SEES_CARD = "FORETELL_LOG" in os.environ
"""Else the forks see the machine as it is: no card, no hooks."""


def main() -> None:
    questions, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.environ[ASKS_NVML] = "1"
    inside = load_hooks()
    import_torch()
    tell(answers, {"ready": True})
    unread = b""
    while True:
        piece = os.read(questions, 1 << 16)
        if not piece:
            return
        unread += piece
        while b"\n" in unread:
            line, _, unread = unread.partition(b"\n")
            run(json.loads(line), inside, questions, answers)


def tell(answers: int, line: dict[str, Any]) -> None:
    os.write(answers, json.dumps(line).encode() + b"\n")


def load_hooks() -> Any:
    """As the bootstrap does: foretell need not be installed here."""
    package = sys.modules["foretell_child"] = ModuleType("foretell_child")
    package.__path__ = [PACKAGE]
    return importlib.import_module("foretell_child.inside")


# --- what the forks share ---------------------------------------------------------------------------------------------


def import_torch() -> None:
    import torch

    importlib.import_module("foretell_child.engines.python_cuda.packages").complete_torchvision(torch)
    with as_the_forks_will(torch):
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what the first optimizer of a process imports
    for name in ("start.torch_hooks", "files.overlay", "guard.offline"):
        importlib.import_module(f"foretell_child.inside.{name}")


def import_all(modules: list[str]) -> None:
    import torch

    with as_the_forks_will(torch):
        for name in modules:
            with contextlib.suppress(ImportError):  # the run that needs it fails, and says so
                importlib.import_module(name)


@contextlib.contextmanager
def as_the_forks_will(torch: Any) -> Iterator[None]:
    """Packages ask once, when they are imported, and remember: in the forks there is a card."""
    is_available = torch.cuda.is_available
    hides_deepspeed = INITIALISES_CUDA not in sys.modules
    if hides_deepspeed:
        sys.modules[INITIALISES_CUDA] = None  # type: ignore[assignment]
    if SEES_CARD:
        torch.cuda.is_available = lambda: True
    yield
    torch.cuda.is_available = is_available
    if hides_deepspeed:
        del sys.modules[INITIALISES_CUDA]


# --- a run ------------------------------------------------------------------------------------------------------------


def run(job: dict[str, Any], inside: Any, questions: int, answers: int) -> None:
    import_all(job["modules"])
    server = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(server)
        os.setsid()  # everything it starts can be found and ended
        os.close(questions)
        os.close(answers)
        in_fork(job, inside)
    tell(answers, {"pid": child})
    wait(child, questions)
    _, status = os.waitpid(child, 0)
    tell(answers, {"exit_status": os.waitstatus_to_exitcode(status)})


def end_with(server: int) -> None:
    """A server that is killed cannot end its fork."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def wait(child: int, questions: int) -> None:
    """Until it has ended. Nothing is asked while it runs: what can be read then is the end of the input."""
    handle = os.pidfd_open(child)
    try:
        ready = select.select([handle, questions], [], [])[0]
    finally:
        os.close(handle)
    if handle not in ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def check_card() -> None:
    """The card is read once: an import that asked for it before the fork would have fixed it for all runs. The CPU
    engine has no such card."""
    described = dict(item.split("=", 1) for item in os.environ.get("FORETELL_DEVICE", "").split(";") if item)
    library = ctypes.CDLL(None)
    if not described or not hasattr(library, "foretell_card"):
        return
    name, total, context = ctypes.create_string_buffer(256), ctypes.c_int64(), ctypes.c_int64()
    library.foretell_card(name, len(name), ctypes.byref(total), ctypes.byref(context))
    if total.value != int(described["total"]):
        wanted = described["total"]
        print(f"CUDA was initialized before the fork: the GPU has {total.value} bytes, not {wanted}", flush=True)
        os._exit(70)


def in_fork(job: dict[str, Any], inside: Any) -> NoReturn:
    """Runs the script as a process of its own would: exceptions go through sys.excepthook, and exit handlers run."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    redirect(job["stdout"], job["stderr"])
    os.chdir(job["cwd"])
    del os.environ[ASKS_NVML]
    for name, value in job["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    check_card()
    code = 0
    try:
        if "FORETELL_CAPTURE" in os.environ:
            inside.install(json.loads(os.environ["FORETELL_CAPTURE"]))
        run_words(job["argv"])
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


def redirect(stdout: str, stderr: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    output = os.open(stdout, flags, 0o644)
    errors = output if stderr == stdout else os.open(stderr, flags, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(ours, theirs)
    for ours in {null, output, errors}:
        os.close(ours)


def run_words(words: list[str]) -> None:
    """SCRIPT ARGS or -m MODULE ARGS, as Python itself takes them."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
