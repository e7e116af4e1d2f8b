"""Run your PyTorch training on a GPU you don't have, and know what it needs before it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Estimate", "ForetellError", "ScriptError", "UnsupportedError", "UsageError", "__version__", "estimate"]

if TYPE_CHECKING:
    from foretell.api import estimate
    from foretell.errors import ForetellError, ScriptError, UnsupportedError, UsageError
    from foretell.records import Estimate


def __getattr__(name: str) -> Any:
    """Loads on first use, so that `foretell --help` starts at once."""
    if name == "estimate":
        from foretell.api import estimate

        return estimate
    if name == "Estimate":
        from foretell.records import Estimate

        return Estimate
    if name in __all__:
        from foretell import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'foretell' has no attribute {name!r}")
