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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from foretell.errors import UnsupportedError, UsageError
from foretell.records import Engine
from foretell.runs.launchers import OneProcess, Ranks, processes
from foretell.runs.taken_apart import Apart, take_apart
from foretell.runs.worlds import World
from foretell.versions import OLDEST_TORCH, parse_version
from foretell.virtual import library_paths

_SHOWN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"}
"""What is said of the environment a launcher would set."""
MAX_GPUS = 16
"""In one virtual machine (virtual/native/core/vgpu.h)."""
_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    argv: tuple[str, ...]
    python: str | None
    """The interpreter that will run it; None if the command does not appear to be Python."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to add to those of the job."""
    num_gpus: int = 1
    """Cards of the machine on which it runs."""
    world: World | None = None
    """Ranks that foretell starts itself, each with this command; None: the command starts its processes itself."""
    note: str | None = None
    """What was done with the command, if it is not run as it was given."""


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
    gpus_per_node: int | None = None,
    world_size: int | None = None,
    ranks: str | None = None,
    files: Sequence[tuple[Path, str]] = (),
) -> Command:
    """Resolve SCRIPT.py, -m MODULE or COMMAND, each with its arguments, and check what can be checked before it runs.
    Paths are relative to `cwd`, and stay as written. `files`: as in `Job.files`."""
    environ = os.environ if environ is None else environ
    if cwd is not None and not cwd.is_dir():
        raise UsageError(f"no such working folder: {cwd}.")
    apart = take_apart(
        words, environ, gpus_per_node=gpus_per_node, world_size=world_size, ranks=ranks, cwd=cwd, files=files
    )
    launched = processes(words, environ, gpus_per_node=gpus_per_node) if apart is None else apart
    num_gpus = gpus_per_node or (launched.count if isinstance(launched, Ranks) else 1)
    if isinstance(launched, Apart):
        num_gpus = launched.world.per_node
    check_num_gpus(num_gpus)
    if isinstance(launched, Apart):
        command = _without_launcher(words, launched.words, launched.launcher, cwd or Path(), environ.get("PATH"))
        command = replace(command, world=launched.world, note=launched.note)
    elif isinstance(launched, OneProcess):
        command = _without_launcher(words, launched.words, launched.launcher, cwd or Path(), environ.get("PATH"))
        shown = " ".join(f"{name}={value}" for name, value in launched.environment.items() if name in _SHOWN)
        note = f"{launched.launcher} has one process to start; it runs directly, with {shown}"
        command = replace(command, environment=launched.environment, note=note)
    else:
        command = _find(words, cwd or Path(), environ.get("PATH"))
    command = replace(command, num_gpus=num_gpus)
    torch = find_torch(command.python) if command.python is not None else None
    # The CPU engine has no native code: on systems other than Linux it is merely untested.
    if engine == "virtual" or (engine == "auto" and not (torch is not None and torch.cuda is None)):
        refuse_platform(sys.platform, platform.machine())
    if command.python is not None:
        refuse_torch(torch, command.python, engine=engine)
    return command


# --- which program ----------------------------------------------------------------------------------------------------


def _find(words: Sequence[str], cwd: Path, search_path: str | None) -> Command:
    if not words or not words[0]:
        raise UsageError("nothing to run. Give a script, -m MODULE or a command: foretell run --gpu rtx-3060 train.py")
    first = words[0]
    if first == "-m":
        if len(words) == 1 or not words[1]:
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


def _without_launcher(
    words: Sequence[str], own: Sequence[str], launcher: str, cwd: Path, search_path: str | None
) -> Command:
    """A process of the job, started directly with the launcher's Python."""
    if not own:
        raise UsageError(f"{launcher} has nothing to run. Give a script: foretell run torchrun train.py")
    command = _find(own, cwd, search_path)
    python = None if tuple(words) == tuple(own) else python_of_launcher(words, search_path, default=None)
    if python is not None and command.argv[0] == sys.executable:
        command = replace(command, argv=(python, *command.argv[1:]), python=python)
    return command


def python_of_launcher(
    words: Sequence[str], search_path: str | None, default: str | None = sys.executable
) -> str | None:
    """The interpreter of `torchrun ...`, or `default`."""
    program = None if words[0] == "-m" else shutil.which(words[0], path=search_path)
    return (_python_of(program) if program is not None else None) or default


def check_num_gpus(count: int) -> None:
    if not 1 <= count <= MAX_GPUS:
        raise UsageError(f"{count} GPUs in one machine: must be 1 to {MAX_GPUS}.")


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


def refuse_torch(torch: TorchInstall | None, python: str, *, engine: Engine | Literal["auto"] = "virtual") -> None:
    other = "If your script uses another environment, name its Python: foretell run -- /path/to/python SCRIPT.py"
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
