"""Judges each script on several cards: python -m benchmarks.bound_by [--only NAME ...]"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foretell import api, gpus
from foretell.jobs import CaptureOptions, Job
from foretell.runs import Warm
from foretell.time import performance, why_unknown

SCRIPTS = Path(__file__).with_name("scripts.py")
CARDS = ("rtx-3090", "a100-40gb", "h100")


@dataclass(frozen=True)
class Judged:
    name: str
    card: str
    said: str
    """What foretell says holds it up, or why it does not know."""

    @property
    def is_right(self) -> bool:
        return self.said == self.name.partition("_")[0]


def names() -> list[str]:
    """Of the functions that are scripts, without importing torch."""
    tree = ast.parse(SCRIPTS.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [each.name for each in functions if any(ast.unparse(mark) == "script" for mark in each.decorator_list)]


def judged(scripts: list[str]) -> Iterator[Judged]:
    """One run of each; its times on other cards follow from its trace."""
    with Warm() as warm:
        for name in scripts:
            options = CaptureOptions(steps="all", time=True, stdout="file")
            job = Job(command=(str(SCRIPTS), name), gpu=gpus.find("h200"), options=options)
            with api.scratch() as folder:
                trace = api.run(job, directory=folder, warm=warm).trace
            for card in CARDS:
                found = performance(trace, gpus.find(card))
                yield Judged(name, card, found.time.bound if found else f"unknown: {why_unknown(trace)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=names(), choices=names())
    found = []
    for each in judged(parser.parse_args().only):
        found.append(each)
        print(f"{each.name:40} {each.card:12} {each.said:10} {'' if each.is_right else 'WRONG'}", flush=True)
    print(f"right: {sum(each.is_right for each in found)} of {len(found)}")


if __name__ == "__main__":
    main()
