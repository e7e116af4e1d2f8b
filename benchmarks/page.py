"""How large the HTML report is and how fast a browser opens it: half a million events, in headless Chromium.

python -m benchmarks.page
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from foretell.records import Block
from foretell.report import html
from report_data import estimate_for, transformer
from test_page import CHROMIUM_OPTIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=220, help="of a 32-layer transformer, 2,300 events each")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--distinct", action="store_true", help="no two blocks of one size or from one line")
    arguments = parser.parse_args()

    attribution = transformer(num_layers=32, num_steps=arguments.steps, hidden=4096, has_equal_batches=False)
    if arguments.distinct:
        attribution = replace(
            attribution, blocks=tuple(map(distinct, range(len(attribution.blocks)), attribution.blocks))
        )
    started = time.perf_counter()
    rendered = html.render(estimate_for(attribution), attribution)
    print(f"events         {attribution.num_events:,}, blocks {len(attribution.blocks):,}")
    print(f"written in     {time.perf_counter() - started:.2f} s, {len(rendered) / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(rendered, encoding="utf-8")
        seconds = [ready_after(file) for _ in range(arguments.times)]
    print(f"ready after    {statistics.median(seconds):.2f} s (median of {len(seconds)}; best {min(seconds):.2f} s)")


def distinct(number: int, block: Block) -> Block:
    """The worst case for compression: sizes in no order, as 7919 is prime, and no two blocks from one line."""
    size = 512 * (1 + number * 7919 % 2**21)
    return replace(block, bytes=size, requested_bytes=size - number * 31 % 512, where=f"/job/{number:x}.py:{number}")


def ready_after(file: Path) -> float:
    """Seconds from the start of navigation until everything is drawn, in a new browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        milliseconds: float = page.evaluate("performance.getEntriesByName('ready')[0].startTime")
        browser.close()
    return milliseconds / 1000


if __name__ == "__main__":
    main()
