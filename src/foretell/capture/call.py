"""Runs in the child: calls a function that `foretell.estimate` has pickled. Started by its path, as a script."""

import pickle
import sys


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        # The caller's own sys.path first: the function's modules must be found before it is unpickled.
        sys.path[:] = pickle.load(file)
        function, args, kwargs = pickle.load(file)
    del sys.argv[1:]
    function(*args, **kwargs)


if __name__ == "__main__":
    main()
