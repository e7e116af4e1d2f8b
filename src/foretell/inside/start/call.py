"""Runs in the child: calls a function that `runs/calls.py` has pickled. Started as a script, by path."""

import pickle
import sys


def main() -> None:
    path = sys.argv.pop(1)
    with open(path, "rb") as file:
        # The caller's sys.path comes first: unpickling the function must find its modules.
        sys.path[:], keeps_result = pickle.load(file)
        function, args, kwargs = pickle.load(file)
    result = function(*args, **kwargs)
    if keeps_result:  # next to it: writes to the capture folder are not redirected
        with open(path + ".result", "wb") as file:
            pickle.dump(result, file)


if __name__ == "__main__":
    main()
