"""`foretell`, but what does not end when it is asked to is killed sooner, so that tests need not wait for it."""

import sys

from foretell.cli import main
from foretell.runs import waiting

waiting._GRACE_SECONDS = 0.5

if __name__ == "__main__":
    sys.exit(main())
