"""`make real-scripts`: runs the scripts of table.py through `foretell run`; writes their rows of docs/real-scripts.md.

Results are kept as lines of JSON: an interrupted run goes on where it stopped (`--resume`). The document keeps the rows
of scripts that were not run. What a script and foretell printed is in output.txt of the script's working folder.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.real_scripts import report
from benchmarks.real_scripts.run import CODE, FOLDER, work
from benchmarks.real_scripts.script import Result, problem
from benchmarks.real_scripts.table import SCRIPTS
from rich.console import Console

from foretell.plain import from_plain, to_plain
from foretell.runs import Pool, Store, parse_workers, state_of_code

PATH = FOLDER / "results.jsonl"


def main() -> int:
    options = parsed()
    console = Console(stderr=True, highlight=False)
    scripts = [script for script in SCRIPTS if not options.only or script.name in options.only]
    store = Store(PATH, state=state_of_code(*CODE))
    waiting = [script for script in scripts if script.name not in store or not options.resume]
    with Pool(options.workers) as pool:
        for number, (script, result) in enumerate(pool.map(work, waiting), start=1):
            store.add(script.name, to_plain(result))
            wrong = problem(script, result)
            summary = f"as expected, {result.seconds:.0f} s" if wrong is None else wrong
            console.print(f"{number} of {len(waiting)}: {script.name}: {summary}", markup=False, soft_wrap=True)
    store.close()
    results = {script.name: from_plain(Result, store[script.name]) for script in scripts if script.name in store}
    Console(width=None if sys.stdout.isatty() else 160).print(report.table(scripts, results))
    report.write(SCRIPTS, results)
    return int(any(problem(script, results[script.name]) for script in scripts))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make real-scripts ARGS=...", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--resume", action="store_true", help="keep the results of this state of the code")
    parser.add_argument(
        "--workers", type=parse_workers, default=1, metavar="N|ray|ray://HOST:PORT",
        help="at once on this machine, or a Ray cluster (default: 1)",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
