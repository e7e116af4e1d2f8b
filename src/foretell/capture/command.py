"""Turns what the user typed after `foretell run` into a command that can run, or says at once why it cannot.

Nothing is imported from torch here: which build is installed is read from its files, so the answer comes before a slow
import would have failed.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.errors import UnsupportedError, UsageError
from foretell.records import Engine
from foretell.virtual import library_paths

OLDEST_TORCH = (2, 6)
_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*")
_LAUNCHERS = {"torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun", "colossalai"}
_LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner"}
_SINGLE_PROCESS_HINT = (
    "Run one process of it: RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500 "
    "foretell run SCRIPT.py ..."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    argv: tuple[str, ...]
    python: str | None
    """The interpreter that will run it; None when the command is not Python's as far as can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """What torch's files say about themselves."""

    folder: Path
    version: str
    cuda: str | None
    is_rocm: bool


def resolve(words: Sequence[str], *, engine: Engine | Literal["auto"] = "auto") -> Command:
    """SCRIPT.py, -m MODULE or COMMAND, each with its arguments; checked for all that can be seen before it runs."""
    refuse_launchers(words, os.environ)
    command = _find(words)
    torch = find_torch(command.python) if command.python is not None else None
    # The CPU engine has no native code: elsewhere than on Linux it is only untried.
    if engine == "virtual" or (engine == "auto" and not (torch is not None and torch.cuda is None)):
        refuse_platform(sys.platform, platform.machine())
    if command.python is not None:
        refuse_torch(torch, command.python, engine=engine)
    return command


# --- which program ----------------------------------------------------------------------------------------------------


def _find(words: Sequence[str]) -> Command:
    if not words:
        raise UsageError("nothing to run. Give a script, -m MODULE or a command: foretell run --gpu rtx-3060 train.py")
    first = words[0]
    if first == "-m":
        if len(words) == 1:
            raise UsageError("-m needs the name of a module: foretell run -m package.train")
        return Command(argv=(sys.executable, *words), python=sys.executable)
    if first.startswith("-"):
        raise UsageError(f"unknown option {first}. `foretell run --help` lists them; they go before the script.")
    path = Path(first)
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return Command(argv=(sys.executable, *words), python=sys.executable)
        raise UsageError(f"{first} is a folder. Give the script in it, or a folder that has a __main__.py.")
    if path.suffix in (".py", ".pyw", ".pyc", ".pyz"):
        if not path.is_file():
            raise UsageError(f"no such script: {first}.{_near(path)}")
        if not os.access(path, os.R_OK):
            raise UsageError(f"the script {first} cannot be read: permission denied.")
        return Command(argv=(sys.executable, *words), python=sys.executable)
    program = shutil.which(first)
    if program is None:
        if path.is_file():
            hint = f"chmod +x {first}, or name its interpreter: foretell run bash {first}"
            raise UsageError(f"{first} is neither a Python script nor executable. {hint}")
        raise UsageError(f"no such script or command: {first}.{_near(path)}")
    return Command(argv=(program, *words[1:]), python=_python_of(program))


def _near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" There is no folder {folder} either."
    scripts = sorted(p.name for p in folder.iterdir() if p.suffix == ".py")
    close = difflib.get_close_matches(path.name, scripts, n=3, cutoff=0.7)
    if close:
        return f" Did you mean {' or '.join(close)}?"
    if scripts:
        more = ", ..." if len(scripts) > 5 else ""
        return f" {folder.resolve()} has {', '.join(scripts[:5])}{more}."
    return f" {folder.resolve()} has no Python scripts."


def _python_of(program: str) -> str | None:
    """A Python interpreter itself, or a script whose first line names one (accelerate, a console script)."""
    if _PYTHON_NAME.fullmatch(Path(program).name):
        return program
    try:
        with open(program, "rb") as file:
            first_line = file.readline(512)
    except OSError:
        return None
    if not first_line.startswith(b"#!"):
        return None
    words = first_line[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words or not _PYTHON_NAME.fullmatch(Path(words[0]).name):
        return None
    return shutil.which(words[0])


# --- what cannot be estimated -----------------------------------------------------------------------------------------


def refuse_platform(system: str, machine: str) -> None:
    if system != "linux":
        name = {"darwin": "macOS", "win32": "Windows"}.get(system, system)
        where = "WSL 2, a container or a Linux machine" if system == "win32" else "a Linux container or machine"
        raise UnsupportedError(
            f"foretell's virtual GPU needs Linux, where the CUDA build of torch is; this is {name}. Run it in {where}: "
            "it needs no GPU there either."
        )
    if machine not in ("x86_64", "amd64"):
        try:
            library_paths()
        except UnsupportedError:
            raise UnsupportedError(
                f"foretell's virtual GPU is built and tested on x86_64; this is {machine}. "
                "`make native` in a checkout builds it here, untested."
            ) from None


def refuse_launchers(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Several processes on several GPUs are not there yet: a clear answer instead of a hang in the first collective."""
    if not argv:
        return
    name = Path(argv[0]).name
    module = next((argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "-m" and i <= 4), None)
    if name in _LAUNCHERS or module in _LAUNCHER_MODULES:
        shown = module if module in _LAUNCHER_MODULES else name
        raise UnsupportedError(f"jobs of several processes ({shown}) are not supported yet. {_SINGLE_PROCESS_HINT}")
    if (name in ("accelerate", "accelerate-launch") or module == "accelerate.commands.launch") and _is_multi(argv):
        raise UnsupportedError(
            "`accelerate launch` with several processes is not supported yet. "
            "Run one process of it: add --num_processes 1."
        )
    world_size = environ.get("WORLD_SIZE", "")
    if world_size.isdigit() and int(world_size) > 1:
        raise UnsupportedError(
            f"WORLD_SIZE={world_size} is set, but jobs of several processes are not supported yet. "
            + _SINGLE_PROCESS_HINT
        )


def _is_multi(argv: Sequence[str]) -> bool:
    text = " ".join(argv)
    count = re.search(r"--num[_-](?:processes|machines)[= ](\d+)", text)
    return "--multi_gpu" in argv or "--multi-gpu" in argv or (count is not None and int(count[1]) > 1)


def refuse_torch(torch: TorchInstall | None, python: str, *, engine: Engine | Literal["auto"] = "virtual") -> None:
    other = (
        "If your script's torch is in another environment, name its Python: foretell run -- /path/to/python SCRIPT.py"
    )
    if torch is None:
        raise UnsupportedError(f"torch is not installed in {python}. pip install torch (the CUDA build). {other}")
    if torch.is_rocm:
        raise UnsupportedError(
            f"torch {torch.version} in {python} is the ROCm build; foretell needs the CUDA build. {other}"
        )
    if torch.cuda is None and engine == "virtual":
        raise UnsupportedError(
            f"torch {torch.version} in {python} is a CPU-only build. The virtual GPU runs the CUDA build, needing no "
            "GPU to be installed: pip install --force-reinstall torch --index-url "
            f"https://download.pytorch.org/whl/cu126. Or take --engine cpu, which runs any build. {other}"
        )
    number = re.match(r"(\d+)\.(\d+)", torch.version)
    if number and (int(number[1]), int(number[2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedError(
            f"torch {torch.version} in {python} is too old: foretell supports {oldest} and newer. {other}"
        )


def find_torch(python: str) -> TorchInstall | None:
    """Reads torch/version.py of that interpreter; None when there is no torch."""
    if python == sys.executable:
        spec = importlib.util.find_spec("torch")
        origin = spec.origin if spec is not None else None
    else:
        code = "import importlib.util as u; s = u.find_spec('torch'); print((s and s.origin) or '')"
        try:
            shown = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        origin = shown.stdout.strip() or None
    if origin is None:
        return None
    folder = Path(origin).parent
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return None

    def value(name: str) -> str | None:
        match = re.search(rf"^{name}(?::[^=]*)?\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
        return match[1] if match else None

    has_cuda = any((folder / "lib" / name).exists() for name in ("libtorch_cuda.so", "libc10_cuda.so"))
    return TorchInstall(
        folder=folder,
        version=value("__version__") or "unknown",
        cuda=value("cuda") if has_cuda else None,
        is_rocm=value("hip") is not None or value("rocm") is not None,
    )
