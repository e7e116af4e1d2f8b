"""A warm process: imports torch and other requested modules once, and forks for every run.

Started by path (`foretell.runs.warm`) where foretell may not be installed, so: standard library and torch only. Each
input line is a run, answered by two lines: the fork's pid, and how it ended. The client watches the time and ends runs
that take too long; when the input ends, so do the fork and this process. CUDA is never initialised here, only in the
forks.

The one difference from a separate process: the hooks are installed after the import of torch, not before it.
"""

import atexit
import builtins
import contextlib
import ctypes
import importlib
import io
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

# Packages check for a GPU while they are imported. With this variable, torch answers without initialising CUDA.
ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
INITIALISES_CUDA = "deepspeed"
"""Other packages import it if installed, and its import creates a CUDA context, which no fork could use."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PR_SET_PDEATHSIG = 1
SEES_CARD = "FORETELL_LOG" in os.environ
"""If false, the forks see the real machine: no card, no hooks."""


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
            question = json.loads(line)
            if "end" in question:  # of a run that has ended in the meantime
                continue
            import_all(question["modules"])
            start = run_contained if question["containment"] else run
            start(question, inside, questions, answers)


def tell(answers: int, line: dict[str, Any]) -> None:
    os.write(answers, json.dumps(line).encode() + b"\n")


def load_hooks() -> Any:
    """Load the hooks as the bootstrap does: foretell may not be installed here."""
    package = sys.modules["foretell_child"] = ModuleType("foretell_child")
    package.__path__ = [PACKAGE]
    return importlib.import_module("foretell_child.inside")


# --- shared by the forks ----------------------------------------------------------------------------------------------


def import_torch() -> None:
    import torch

    importlib.import_module("foretell_child.engines.python_cuda.packages").complete_torchvision(torch)
    with as_the_forks_will(torch):
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what the first optimizer of a process imports
    for name in ("start.torch_hooks", "files.overlay", "files.layers", "guard.offline"):
        importlib.import_module(f"foretell_child.inside.{name}")


def import_all(modules: list[str]) -> None:
    import torch

    with as_the_forks_will(torch):
        for name in modules:
            with contextlib.suppress(ImportError):  # the run that needs it fails with the error
                importlib.import_module(name)


@contextlib.contextmanager
def as_the_forks_will(torch: Any) -> Iterator[None]:
    """Show a card during imports, as in the forks: packages check once, when imported, and remember the answer."""
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


# --- one run ----------------------------------------------------------------------------------------------------------


def run(job: dict[str, Any], inside: Any, questions: int, answers: int) -> None:
    server = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(server)
        os.setsid()  # so that everything it starts can be found and killed
        os.close(questions)
        os.close(answers)
        in_fork(job, inside)
    tell(answers, {"pid": child})
    wait(child, questions)
    _, status = os.waitpid(child, 0)
    tell(answers, {"exit_status": os.waitstatus_to_exitcode(status)})


def run_contained(job: dict[str, Any], inside: Any, questions: int, answers: int) -> None:
    """The same in namespaces of its own; `namespaces/processes.py` describes the answers. The last one is empty."""
    processes = importlib.import_module("foretell_child.namespaces.processes")
    controlled, control = os.pipe()
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in (questions, answers, control, told):
            os.close(descriptor)

        def program() -> NoReturn:
            os.close(telling)
            in_fork(job, inside)

        processes.supervise(job["containment"], program, control=controlled, answers=telling)
    os.close(controlled)
    os.close(telling)
    poll = select.poll()
    poll.register(told, select.POLLIN)
    poll.register(questions, select.POLLIN)
    is_over = False
    while not is_over:
        for descriptor, _ in poll.poll():
            piece = os.read(descriptor, 1 << 16)
            if descriptor == told:
                os.write(answers, piece)
                is_over = not piece
            elif piece:
                with contextlib.suppress(BrokenPipeError):
                    os.write(control, piece)
            else:  # the client has died
                poll.unregister(questions)
                os.close(control)
                control = os.open(os.devnull, os.O_WRONLY)
    os.waitpid(child, 0)
    os.close(control)
    os.close(told)
    with contextlib.suppress(BrokenPipeError):
        tell(answers, {})


def end_with(server: int) -> None:
    """Kill this fork when the server dies: a killed server cannot end it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def wait(child: int, questions: int) -> None:
    """Wait until the child ends. No requests arrive while it runs, so readable input means end of input."""
    handle = os.pidfd_open(child)
    try:
        ready = select.select([handle, questions], [], [])[0]
    finally:
        os.close(handle)
    if handle not in ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def check_card() -> None:
    """Check that the card is the right one: it is read once, and an import that queried it before the fork would have
    fixed it for all runs. The CPU engine has no such card."""
    described = dict(item.split("=", 1) for item in os.environ.get("FORETELL_DEVICE", "").split(";") if item)
    library = ctypes.CDLL(None)
    if not described or not hasattr(library, "foretell_card"):
        return
    library.foretell_log_to(os.environb.get(b"FORETELL_LOG", b""))
    name, total, context = ctypes.create_string_buffer(256), ctypes.c_int64(), ctypes.c_int64()
    library.foretell_card(name, len(name), ctypes.byref(total), ctypes.byref(context))
    if total.value != int(described["total"]):
        wanted = described["total"]
        print(f"CUDA was initialized before the fork: the GPU has {total.value} bytes, not {wanted}", flush=True)
        os._exit(70)


def in_fork(job: dict[str, Any], inside: Any) -> NoReturn:
    """Run the script as in a separate process: exceptions go through sys.excepthook, and exit handlers run."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    leave_what_is_the_servers()
    redirect(job["stdout"], job["stderr"])
    os.chdir(job["cwd"])
    del os.environ[ASKS_NVML]
    for name, value in job["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    check_card()
    run_to_its_end(job["argv"], inside)


def run_to_its_end(words: list[str], inside: Any = None) -> NoReturn:
    """Run SCRIPT ARGS or -m MODULE ARGS and end this process as Python would; `inside`: install the hooks first."""
    code = 0
    try:
        if inside is not None and "FORETELL_CAPTURE" in os.environ:
            inside.install(json.loads(os.environ["FORETELL_CAPTURE"]))
        run_words(words)
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
    # Not os._exit: exit handlers of the script's libraries run. Not sys.exit: finalizing Python is slow.
    ctypes.PyDLL(None).exit(code)
    raise AssertionError("exit returned")


def leave_what_is_the_servers() -> None:
    """Finalize nothing at exit that was loaded before the fork: torch would unregister thousands of operators, which
    takes as long as a short training."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    # C runs its exit handlers last in, first out: those of the script's libraries, then a flush of stdio, then the end.
    library = ctypes.CDLL(None)
    library.on_exit(library._exit, None)
    library.__cxa_atexit(library.fflush, None, None)


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
    """Run SCRIPT ARGS or -m MODULE ARGS, as Python's command line does."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        run_script(words[0])


def run_script(name: str) -> None:
    """As `python NAME` does: tracebacks and `__file__` have the absolute path, `sys.argv` keeps what was given, and its
    globals stay to the end. runpy would give both the same path, and clear the globals."""
    path = os.path.abspath(name)
    if pkgutil.get_importer(path) is not None or path.endswith(".pyc"):  # a folder, or a zip file
        runpy.run_path(name, run_name="__main__")
        return
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    main()
