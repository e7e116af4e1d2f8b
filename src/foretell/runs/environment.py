"""The surroundings of a captured process: its capture folder, and the environment with the card and the hooks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from foretell.errors import UnsupportedError
from foretell.jobs import Job
from foretell.protocol.options import encode
from foretell.records import IsolationMode, LibraryBytes
from foretell.rules import guessed_context_bytes, is_eager, library_bytes
from foretell.rules.nccl import fabric_of
from foretell.virtual import are_libraries_there, environment, library_paths
from foretell.virtual.environment import convolution_line

OUTPUT = "output.txt"
"""In the capture folder: the script's output, if it does not go to the terminal."""
OWNER = ".owner"
"""In a capture folder that foretell has made for itself: locked by its process."""
_SHARED_CACHES = ("compiled", "cudnn")
_HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME")
_BOOTSTRAP = Path(__file__).parent.parent / "inside" / "bootstrap"


def libraries_of(job: Job) -> LibraryBytes:
    guessed = library_bytes(job.gpu, context_bytes=job.context_bytes, is_eager=is_eager(job.variables()))
    # A profile of a single card does not cover NCCL.
    return guessed if job.profile is None else replace(job.profile.libraries, nccl=guessed.nccl)


def context_of(job: Job) -> int:
    """Memory of an empty process: given, measured, or guessed for the card and the way its kernels are loaded."""
    if job.is_context_given:
        return job.empty_process_bytes
    return guessed_context_bytes(job.gpu, is_eager=is_eager(job.variables()))


def child_environment(
    job: Job, directory: Path, *, isolation: IsolationMode = "python", num_gpus: int = 1
) -> dict[str, str]:
    """The complete environment of the child. Also writes the files it refers to into the capture folder."""
    options, base = job.options, job.variables()
    options = replace(options, interconnect=fabric_of(job.gpu, options.interconnect).words)
    # The CPU engine does not need the driver, but a torch with CUDA queries it, and this one answers.
    is_preloaded = options.engine == "virtual" or are_libraries_there()
    measured = {}
    if job.profile is not None and job.profile.convolutions:
        (directory / "workspaces").write_text("".join(map(convolution_line, job.profile.convolutions)))
        measured["FORETELL_WORKSPACES"] = str(directory / "workspaces")
    return {
        **base,
        **environment(
            job.gpu,
            context_bytes=context_of(job) + job.used_by_others_bytes,
            libraries=libraries_of(job),
            log_prefix=str(directory / "native"),
            num_devices=num_gpus,
            events=options.events,
            workspaces=options.workspaces,
            is_preloaded=is_preloaded,
            base=base,
        ),
        **measured,
        **({"TRITON_LIBCUDA_PATH": str(_linker_folder(directory))} if is_preloaded else {}),
        **_compile_caches(directory, base),
        "FORETELL_CAPTURE": encode(directory, replace(options, isolation=isolation)),
        "PYTHONPATH": os.pathsep.join([str(_BOOTSTRAP), *filter(None, [base.get("PYTHONPATH")])]),
    }


def _linker_folder(directory: Path) -> Path:
    """The folder where Triton finds `libcuda.so`: it links to that name, which only development packages provide."""
    folder = directory / "linker"
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libcuda.so.1"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(library_paths().cuda)
    return folder


def _compile_caches(directory: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Separate cache folders: torch.compile and Triton tune for a GPU that computes nothing, and a real one must not
    reuse the results."""
    folder = private_cache("compiled", variables) or directory / "compiled"
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def private_cache(name: str, variables: Mapping[str, str]) -> Path | None:
    """A folder that foretell keeps from run to run, created if need be; None if there is no place for it. Others can
    neither read nor write it: code is loaded from it."""
    given, home = Path(variables.get("XDG_CACHE_HOME") or "."), Path(variables.get("HOME") or ".")
    base = given if given.is_absolute() else home / ".cache"  # a relative one is invalid, says its specification
    if not base.is_absolute() or (base == home / ".cache" and not home.is_dir()):
        return None
    folder = base / "foretell" / name
    try:
        for each in (base, base / "foretell", folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (base / "foretell", folder):
            if each.stat().st_uid != os.getuid():
                return None
            each.chmod(0o700)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def shared_caches(variables: Mapping[str, str]) -> list[Path]:
    """The folders that a run writes for later ones."""
    folders = (private_cache(name, variables) for name in _SHARED_CACHES)
    return [folder for folder in folders if folder is not None]


def hub_caches(variables: Mapping[str, str]) -> list[Path]:
    """Where downloads of models and data are kept."""
    cache = Path(variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME") or "/") / ".cache")
    given = [variables[name] for name in _HUB_VARIABLES if name in variables]
    folders = [*map(Path, given), *(cache / name for name in ("huggingface", "torch"))]
    return [folder for folder in folders if folder.is_absolute() and folder.is_dir()]


def write_to_overlay(directory: Path, files: Iterable[tuple[Path, str]]) -> None:
    """As if the script had written them: `inside/files/overlay.py` finds them there."""
    for path, text in files:
        place = directory / "overlay" / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="")


def make_directory(path: Path) -> Path:
    """Create the capture folder; a full or read-only disk is reported before anything runs."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / ".room").write_bytes(bytes(4096))
        (path / ".room").unlink()
    except OSError as error:
        reason = "no space left on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise UnsupportedError(
            f"cannot write to the capture folder {path}: {reason}. Set TMPDIR to a folder with free space."
        ) from None
    return path
