"""Which line of a stack says most about an allocation: the deepest one of a model, the user's or a library's.

A stack is cut into stretches, at each call of a module and at each frame of a training loop. The innermost stretch
with code of the user or of a library decides: the user's innermost line in it, or else the library's. So a layer of
your own is shown at your line even if it calls a library, a layer of a library at the library's, and work of the
trainer itself at the line that started it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

FileKind = Literal["user", "library", "loop", "machinery", "foretell"]
"""`loop`: runs a training, moves batches or loads models; `machinery`: torch, Python itself, generated code."""

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](.+)")
_STANDARD = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\]")
_CONSOLE_SCRIPT = re.compile(r"[/\\]bin[/\\][^/\\.]+$")
_GENERATED = re.compile(r"[/\\](torch)?inductor(_\w+)?[/\\]|^<")
_GUESSED_FORETELL = re.compile(r"[/\\]foretell[/\\](inside|engines|rules|allocator|protocol|capture)[/\\]")
_MACHINERY = re.compile(
    r"(torch|triton|functorch|torchgen|_distutils_hack|einops|opt_einsum|jaxtyping|beartype|tqdm|numpy"
    r"|click|typer|fire|absl|hydra|jsonargparse)[/\\]"
    r"|typing_extensions\.py"
)
_LOOPS = re.compile(
    r"(accelerate|deepspeed|lightning|lightning_fabric|pytorch_lightning|ignite|composer|datasets)[/\\]"
    r"|transformers[/\\](trainer|core_model_loading|modeling_utils|initialization|utils[/\\]|quantizers[/\\]"
    r"|optimization|models[/\\]auto[/\\]|integrations[/\\](accelerate|deepspeed|fsdp|peft|tensor_parallel))"
    r"|peft[/\\](peft_model|mapping|auto|utils[/\\])"
    r"|fastai[/\\](learner|callback|data)"
    r"|timm[/\\](data|optim|scheduler)[/\\]|bitsandbytes[/\\]optim[/\\]"
    r"|ultralytics[/\\](engine|cfg|data)[/\\]"
)
_CALLS_A_MODULE = "_call_impl"


class Lines:
    """Chooses lines in the stacks of one process. Without its folders, names of folders decide."""

    def __init__(self, library_folders: tuple[str, ...], own_folders: tuple[str, ...]) -> None:
        self._libraries = library_folders
        self._own = own_folders
        self._kinds: dict[str, FileKind] = {}

    def kind_of(self, file: str) -> FileKind:
        kind = self._kinds.get(file)
        if kind is None:
            kind = self._kinds[file] = self._find_kind(file)
        return kind

    def choose(self, frames: Iterable[tuple[str, int, str]]) -> tuple[str, FileKind] | None:
        """`file:line` and what it belongs to, of frames (file, line, function) from the innermost one outwards."""
        innermost: dict[FileKind, str] = {}
        user = library = None
        for file, line, function in frames:
            kind = self.kind_of(file)
            if kind == "foretell":
                continue
            innermost.setdefault(kind, f"{file}:{line}")
            if kind == "loop" or function == _CALLS_A_MODULE:
                if user or library:
                    break
            elif kind == "user":
                user = user or f"{file}:{line}"
            elif kind == "library":
                library = library or f"{file}:{line}"
        if user:
            return user, "user"
        if library:
            return library, "library"
        return next(((innermost[kind], kind) for kind in ("loop", "machinery") if kind in innermost), None)

    def _find_kind(self, file: str) -> FileKind:
        if file.startswith(self._own) if self._own else _GUESSED_FORETELL.search(file):
            return "foretell"
        if file.startswith("<") and file.endswith(">") and file != "<string>":
            return "foretell"  # a frame that stands for a module, or one of Python's own
        if _GENERATED.search(file):
            return "machinery"
        installed = _INSTALLED.search(file)
        is_guessed = installed is not None or _STANDARD.search(file) is not None
        if not (file.startswith(self._libraries) if self._libraries else is_guessed):
            return "machinery" if _CONSOLE_SCRIPT.search(file) else "user"
        if installed is None:
            return "machinery"  # the standard library
        if _MACHINERY.match(installed[1]):
            return "machinery"
        return "loop" if _LOOPS.match(installed[1]) else "library"
