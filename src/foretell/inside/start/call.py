"""Runs in the child: calls a function that `runs/calls.py` has pickled. Started by its path, as a script."""

import pickle
import sys


def main() -> None:
    path = sys.argv.pop(1)
    with open(path, "rb") as file:
        # The caller's own sys.path first: the function's modules must be found before it is unpickled.
        sys.path[:], keeps_result = pickle.load(file)
        function, args, kwargs = pickle.load(file)
    result = function(*args, **kwargs)
    if keeps_result:  # beside it: nothing is redirected that is written to the capture folder
        with open(path + ".result", "wb") as file:
            pickle.dump(result, file)


if __name__ == "__main__":
    main()
