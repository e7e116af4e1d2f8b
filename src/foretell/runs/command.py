"""Resolves the words after `foretell run` to a command, or explains at once why it cannot run.

torch is not imported here: the installed build is identified from its files, so a wrong one is reported before a slow
import fails.
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
from foretell.versions import OLDEST_TORCH, parse_version
from foretell.virtual import library_paths

_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*")
_LAUNCHERS = {"torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun", "colossalai"}
_LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner"}
_SINGLE_PROCESS_HINT = (
    "Run a single process: RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500 "
    "foretell run SCRIPT.py ..."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    argv: tuple[str, ...]
    python: str | None
    """The interpreter that will run it; None if the command does not appear to be Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """An installed torch, as described by its files."""

    folder: Path
    version: str
    cuda: str | None
    is_rocm: bool


def resolve(
    words: Sequence[str],
    *,
    engine: Engine | Literal["auto"] = "auto",
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Command:
    """Resolve SCRIPT.py, -m MODULE or COMMAND, each with its arguments, and check what can be checked before it runs.
    Paths are relative to `cwd`, and stay as written."""
    environ = os.environ if environ is None else environ
    if cwd is not None and not cwd.is_dir():
        raise UsageError(f"no such working folder: {cwd}.")
    refuse_launchers(words, environ)
    command = _find(words, cwd or Path(), environ.get("PATH"))
    torch = find_torch(command.python) if command.python is not None else None
    # The CPU engine has no native code: on systems other than Linux it is merely untested.
    if engine == "virtual" or (engine == "auto" and not (torch is not None and torch.cuda is None)):
        refuse_platform(sys.platform, platform.machine())
    if command.python is not None:
        refuse_torch(torch, command.python, engine=engine)
    return command


# --- which program ----------------------------------------------------------------------------------------------------


def _find(words: Sequence[str], cwd: Path, search_path: str | None) -> Command:
    if not words:
        raise UsageError("nothing to run. Give a script, -m MODULE or a command: foretell run --gpu rtx-3060 train.py")
    first = words[0]
    if first == "-m":
        if len(words) == 1:
            raise UsageError("-m needs a module name, for example: foretell run -m package.train")
        return Command(argv=(sys.executable, *words), python=sys.executable)
    if first.startswith("-"):
        raise UsageError(f"unknown option {first}. `foretell run --help` lists the options, which go first.")
    path = cwd / first
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return Command(argv=(sys.executable, *words), python=sys.executable)
        raise UsageError(f"{first} is a folder without a __main__.py. Give a script.")
    if path.suffix in (".py", ".pyw", ".pyc", ".pyz"):
        if not path.is_file():
            raise UsageError(f"no such script: {first}.{_near(path)}")
        if not os.access(path, os.R_OK):
            raise UsageError(f"cannot read the script {first}: permission denied.")
        return Command(argv=(sys.executable, *words), python=sys.executable)
    has_folder = os.path.dirname(first) != ""
    program = shutil.which(str(path) if has_folder else first, path=search_path)
    if program is None:
        if path.is_file():
            hint = f"Run chmod +x {first}, or name its interpreter: foretell run bash {first}"
            raise UsageError(f"{first} is neither a Python script nor executable. {hint}")
        raise UsageError(f"no such script or command: {first}.{_near(path)}")
    return Command(argv=(program, *words[1:]), python=_python_of(program))


def _near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" There is no folder {folder}."
    scripts = sorted(p.name for p in folder.iterdir() if p.suffix == ".py")
    close = difflib.get_close_matches(path.name, scripts, n=3, cutoff=0.7)
    if close:
        return f" Did you mean {' or '.join(close)}?"
    if scripts:
        more = ", ..." if len(scripts) > 5 else ""
        return f" {folder.resolve()} contains {', '.join(scripts[:5])}{more}."
    return f" {folder.resolve()} contains no Python scripts."


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
            f"foretell's virtual GPU needs Linux, like the CUDA build of torch; this is {name}. Run it in {where}; "
            "no GPU is needed."
        )
    if machine not in ("x86_64", "amd64"):
        try:
            library_paths()
        except UnsupportedError:
            raise UnsupportedError(
                f"foretell's virtual GPU is built and tested on x86_64; this is {machine}. "
                "To build it here (untested), run `make native` in a checkout."
            ) from None


def refuse_launchers(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Multi-process jobs are not supported yet: say so instead of hanging in the first collective."""
    if not argv:
        return
    name = Path(argv[0]).name
    module = next((argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "-m" and i <= 4), None)
    if name in _LAUNCHERS or module in _LAUNCHER_MODULES:
        shown = module if module in _LAUNCHER_MODULES else name
        raise UnsupportedError(f"multi-process jobs ({shown}) are not supported yet. {_SINGLE_PROCESS_HINT}")
    if (name in ("accelerate", "accelerate-launch") or module == "accelerate.commands.launch") and _is_multi(argv):
        raise UnsupportedError(
            "`accelerate launch` with several processes is not supported yet. "
            "Run a single process: add --num_processes 1."
        )
    world_size = environ.get("WORLD_SIZE", "")
    if world_size.isdigit() and int(world_size) > 1:
        raise UnsupportedError(
            f"WORLD_SIZE={world_size} is set, but multi-process jobs are not supported yet. "
            + _SINGLE_PROCESS_HINT
        )


def _is_multi(argv: Sequence[str]) -> bool:
    text = " ".join(argv)
    count = re.search(r"--num[_-](?:processes|machines)[= ](\d+)", text)
    return "--multi_gpu" in argv or "--multi-gpu" in argv or (count is not None and int(count[1]) > 1)


def refuse_torch(torch: TorchInstall | None, python: str, *, engine: Engine | Literal["auto"] = "virtual") -> None:
    other = (
        "If your script uses another environment, name its Python: foretell run -- /path/to/python SCRIPT.py"
    )
    if torch is None:
        raise UnsupportedError(f"torch is not installed in {python}. Install a CUDA build: pip install torch. {other}")
    if torch.is_rocm:
        raise UnsupportedError(
            f"torch {torch.version} in {python} is the ROCm build; foretell needs the CUDA build. {other}"
        )
    if torch.cuda is None and engine == "virtual":
        raise UnsupportedError(
            f"torch {torch.version} in {python} is a CPU-only build. The virtual GPU needs a CUDA build (but no GPU): "
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126. "
            f"Or use --engine cpu, which works with any build. {other}"
        )
    version = parse_version(torch.version)
    if version is not None and version < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedError(
            f"torch {torch.version} in {python} is too old: foretell supports {oldest} and newer. {other}"
        )


def find_torch(python: str) -> TorchInstall | None:
    """Reads torch/version.py of that interpreter; None if torch is not installed."""
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
