"""`python -m foretell` is the same program as `foretell`."""

import sys

from foretell.cli import main

if __name__ == "__main__":
    sys.exit(main())
