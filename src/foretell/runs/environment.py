"""The surroundings of a captured process: its capture folder, and the environment with the card and the hooks."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from foretell.errors import UnsupportedError
from foretell.jobs import Job
from foretell.protocol.options import encode
from foretell.records import LibraryBytes
from foretell.rules import library_bytes
from foretell.virtual import are_libraries_there, environment, library_paths
from foretell.virtual.environment import convolution_line

OUTPUT = "output.txt"
"""In the capture folder: the script's output, if it does not go to the terminal."""
_BOOTSTRAP = Path(__file__).parent.parent / "inside" / "bootstrap"


def libraries_of(job: Job) -> LibraryBytes:
    guessed = library_bytes(job.gpu)
    # A profile of a single card does not cover NCCL.
    return guessed if job.profile is None else replace(job.profile.libraries, nccl=guessed.nccl)


def child_environment(job: Job, directory: Path) -> dict[str, str]:
    """The complete environment of the child. Also writes the files it refers to into the capture folder."""
    options, base = job.options, job.variables()
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
            context_bytes=job.empty_process_bytes + job.used_by_others_bytes,
            libraries=libraries_of(job),
            log_prefix=str(directory / "native"),
            events=options.events,
            is_preloaded=is_preloaded,
            base=base,
        ),
        **measured,
        **({"TRITON_LIBCUDA_PATH": str(_linker_folder(directory))} if is_preloaded else {}),
        **_compile_caches(directory, base.get("XDG_CACHE_HOME")),
        "FORETELL_CAPTURE": encode(directory, options),
        "PYTHONPATH": os.pathsep.join([str(_BOOTSTRAP), *filter(None, [base.get("PYTHONPATH")])]),
    }


def _linker_folder(directory: Path) -> Path:
    """The folder where Triton finds `libcuda.so`: it links to that name, which only development packages provide."""
    folder = directory / "linker"
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / name).symlink_to(library_paths().cuda)
    return folder


def _compile_caches(directory: Path, cache_home: str | None) -> dict[str, str]:
    """Separate cache folders: torch.compile and Triton tune for a GPU that computes nothing, and a real one must not
    reuse the results."""
    folder = Path(cache_home or Path.home() / ".cache") / "foretell" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = directory / "compiled"
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


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
