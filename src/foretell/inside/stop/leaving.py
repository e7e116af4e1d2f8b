"""Ends the script from inside, with a SystemExit of code 0: it passes `except Exception`, and `finally` blocks and exit
handlers run. A bare `except:` can catch it; after a few such refusals the process ends without unwinding.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

from ..capture import Capture

MOST_REFUSALS = 5


class EnoughSeen(SystemExit):
    """Raised when nothing more is expected from the script."""

    def __init__(self) -> None:
        super().__init__(0)


class Leaving:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._num_refusals = 0

    def leave(self, what: str, *, how: str = "exit") -> NoReturn:
        """Raise, after a line in the journal. `what` is left, and `how`: as in the kind `ended_early`."""
        if self._num_refusals == 0:
            self._capture.ends_early(what, how=how)
        self._num_refusals += 1
        if self._num_refusals > MOST_REFUSALS:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        raise EnoughSeen
