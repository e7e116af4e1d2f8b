"""Decides which paths are the user's, so that writes to them are redirected.

All are, except:

- /dev, /proc, /sys, the capture folder;
- cache folders (~/.cache, those named by XDG_CACHE_HOME, HF_HOME, TORCH_HOME ..., ~/.triton, __pycache__): they can be
  rebuilt, and programs other than Python look there for compiled files;
- directly in the temp folder, what `tempfile` itself made in this process, and TorchInductor's and Triton's own
  folders. The rest of the temp folder is protected like any other place: people keep checkpoints in /tmp too.
"""

from __future__ import annotations

import os

CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
)
CACHE_FOLDERS = ("~/.cache", "~/.triton", "~/.nv", "~/.config/matplotlib")
TOOLS_IN_TEMP = ("torchinductor_", "triton", "torch_extensions", "torchelastic_")


class Protected:
    def __init__(self, capture_folder: str) -> None:
        caches = [os.environ.get(variable, "") for variable in CACHE_VARIABLES]
        caches += [os.path.expanduser(folder) for folder in CACHE_FOLDERS]
        folders = ["/dev", "/proc", "/sys", capture_folder, *(os.path.abspath(cache) for cache in caches if cache)]
        self._exempt = tuple({f"{_real(folder)}/" for folder in folders} | {f"{folder}/" for folder in folders})
        temp = [os.environ.get(variable, "") for variable in ("TMPDIR", "TEMP", "TMP")]
        self._temp_folders = {_real(folder) for folder in (*temp, "/tmp", "/var/tmp") if folder}
        self._exempt_in_temp = tuple(f"{folder}/{tool}" for folder in self._temp_folders for tool in TOOLS_IN_TEMP)
        self._made_by_tempfile: set[str] = set()

    def __call__(self, path: str) -> bool:
        if f"{path}/".startswith(self._exempt) or "/__pycache__/" in f"{path}/":
            return False
        return not path.startswith(self._exempt_in_temp) and not self._is_temporary(path)

    def made_by_tempfile(self, path: str) -> None:
        if os.path.dirname(path) in self._temp_folders:
            self._made_by_tempfile.add(path)

    def _is_temporary(self, path: str) -> bool:
        for folder in self._temp_folders:
            if path.startswith(f"{folder}/"):
                name = path[len(folder) + 1 :].partition("/")[0]
                return f"{folder}/{name}" in self._made_by_tempfile
        return False


def _real(path: str) -> str:
    return os.path.realpath(path)
