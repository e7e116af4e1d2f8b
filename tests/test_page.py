"""The HTML report, in a browser: what it shows against what the attribution says."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from rich.console import Console

from conftest import ROOT
from foretell.records import CATEGORIES, Attribution, Block, OutsidePeak, Span
from foretell.report import html, text
from foretell.report.causes import TITLES
from foretell.report.performance import sentence
from foretell.units import GIB, MIB, format_bytes
from report_data import ADVICE, LEAKS, estimate_for, performance, ranks_for, transformer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Locator, LocatorAssertions, Page

PAGE = ROOT / "src/foretell/report/page.html"
SOURCES = ROOT / "web/report"
MAX_FILE_BYTES = 15_000_000
MAX_SECONDS = 300
"""How long a page may take to get into a state. Only a page that is stuck takes this long, even on a busy machine."""
CHROMIUM_OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
pytestmark = pytest.mark.xdist_group("browser")


@cache
def run() -> Attribution:
    return transformer(num_layers=3, num_steps=3, vocabulary=2000)


def levels(attribution: Attribution, event: int) -> dict[str, int]:
    """By category, computed as slowly and plainly as can be."""
    found = dict.fromkeys(CATEGORIES, 0)
    for block in attribution.blocks:
        if block.begin <= event and (block.end is None or block.end > event):
            found[block.category] += block.bytes
    return {category: size for category, size in found.items() if size}


def alive(attribution: Attribution, event: int) -> list[Block]:
    return [each for each in attribution.blocks if each.begin <= event and (each.end is None or each.end > event)]


# Without a browser


def test_the_page_was_built_from_the_sources_that_are_here() -> None:
    digest = hashlib.sha256()
    files = {str(path.relative_to(SOURCES)): path for path in SOURCES.rglob("*") if path.is_file()}
    for name in sorted(name for name in files if not name.startswith("node_modules")):
        digest.update(name.encode() + b"\0" + files[name].read_bytes() + b"\0")
    built_from = re.search(r'name="sources" content="(\w+)"', PAGE.read_text())
    assert built_from is not None
    assert built_from[1] == digest.hexdigest(), "web/report has changed: run `make page` and commit page.html"


def test_the_licences_of_what_the_page_contains_are_in_it() -> None:
    comment = PAGE.read_text().split("-->")[0]
    for name in ("preact", "@preact/signals", "@preact/signals-core", "uplot", "d3-hierarchy"):
        assert re.search(rf"^{name} [\d.]+ \((MIT|ISC)\)$", comment, re.MULTILINE), name
    assert comment.lower().count("copyright") >= 5


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text()


def test_equal_runs_give_equal_files() -> None:
    assert html.render(estimate_for(run()), run()) == html.render(estimate_for(run()), run())


def test_labels_and_strings_are_written_once() -> None:
    columns = html.columns(run())
    assert len(columns["strings"]) == len(set(columns["strings"]))
    labels = list(zip(*columns["labels"].values(), strict=True))
    assert len(labels) == len(set(labels)) < len(run().blocks) / 2


def test_the_page_shows_every_field_it_carries() -> None:
    """Data that nothing reads would be in every report for nothing."""
    sources = [path for path in (SOURCES / "src").glob("*.ts*") if path.name != "document.ts"]
    read = set(re.findall(r"\w+", " ".join(path.read_text() for path in sources)))
    estimate = replace(
        estimate_for(run(), is_out_of_memory=True), advice=ADVICE, leaks=LEAKS, performance=performance()
    )
    first, second = ranks_for([run(), transformer(num_layers=1, num_steps=3, vocabulary=500)])
    of_ranks = replace(estimate, world=first.world, ranks=first.ranks)
    carried = names_in(document_in(html.render(of_ranks, run(), other_ranks=[second])))
    assert carried - read == {"schema"}


def document_in(page_html: str) -> dict[str, Any]:
    packed = re.search(r'id="data">([^<]+)<', page_html)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def names_in(document: object) -> set[str]:
    if isinstance(document, dict):
        return set(document).union(*map(names_in, document.values()))
    return set().union(*map(names_in, document)) if isinstance(document, list) else set()


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    reason = "playwright is not installed: make browser"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright.expect.set_options(timeout=MAX_SECONDS * 1000)
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=CHROMIUM_OPTIONS)
        yield opened
        opened.close()


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Shows a page; afterwards nothing may have been complained about or asked of the network."""
    pages: list[Page] = []
    complaints: list[str] = []

    def show(
        page_html: str,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        before_opening: Callable[[Page], object] = lambda page: None,
    ) -> Page:
        file = tmp_path / f"page-{len(pages)}.html"
        file.write_text(page_html, encoding="utf-8")
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",  # an animated scroll moves what a test is about to click
        )
        page.set_default_timeout(MAX_SECONDS * 1000)
        pages.append(page)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
        before_opening(page)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield show
    for page in pages:
        page.close()
    assert complaints == []


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    return open_page(html.render(replace(estimate_for(run()), advice=ADVICE, leaks=LEAKS), run()))


# The page answers input in its own time, so whatever an action changes is waited for: by a locator's own waiting, by
# `expect`, or by `eventually`. Never by `wait_for_function` with an expression: Playwright evaluates it in the page
# again for each poll, and the page's content security policy forbids eval.

Value = TypeVar("Value")


def expect(locator: Locator) -> LocatorAssertions:
    """Playwright's assertions, which wait until they hold."""
    from playwright.sync_api import expect as expect_of_playwright

    return expect_of_playwright(locator)


def eventually(read: Callable[[], Value], is_expected: Callable[[Value], bool]) -> Value:
    """Reads until the value is as expected, and returns it."""
    deadline = time.monotonic() + MAX_SECONDS
    while not is_expected(value := read()):
        assert time.monotonic() < deadline, f"still {value!r} after {MAX_SECONDS} s"
    return value


def expect_event(page: Page, event: int) -> None:
    """The moment that the page shows."""
    expect(page.locator(".moment")).to_contain_text(re.compile(rf"event {event:,}\b"))


def expect_range(page: Page, first: int, last: int) -> None:
    """The part of the run that the timeline shows."""
    expect(page.locator(".chart")).to_have_attribute("data-from", str(first))
    expect(page.locator(".chart")).to_have_attribute("data-to", str(last))


def expect_num_rows(page: Page, count: int) -> None:
    expect(page.locator("#block-count")).to_have_text(re.compile(rf"^{count:,} of "))


def expect_first_row(page: Page, is_expected: Callable[[Block], bool]) -> Block:
    return eventually(lambda: first_row(page), is_expected)


def chosen_event(page: Page) -> int:
    found = re.search(r"event ([\d,]+)", page.locator(".moment").inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def shown_range(page: Page) -> tuple[int, int]:
    chart = page.locator(".chart")
    return int(chart.get_attribute("data-from") or -1), int(chart.get_attribute("data-to") or -1)


def first_row(page: Page) -> Block:
    return run().blocks[int(page.locator("#row-0").get_attribute("data-block") or -1)]


def width_of(locator: Locator) -> float:
    return locator.evaluate("element => element.clientWidth")


def colours_in(page: Page, canvas: str) -> int:
    return page.evaluate(
        """canvas => {
            const { width, height } = canvas;
            return new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer)).size;
        }""",
        page.locator(canvas).first.element_handle(),
    )


def test_an_evaluation_has_a_row_of_its_own_among_the_steps(open_page: OpenPage) -> None:
    estimate = estimate_for(run())
    evaluation = OutsidePeak(kind="evaluation", after_step=1, peak_allocated_bytes=MIB, peak_reserved_bytes=2 * MIB)
    page = open_page(html.render(replace(estimate, outside_steps=(evaluation,)), run()))
    rows = [row.inner_text().split("\t") for row in page.locator(".peaks tbody tr").all()]
    assert [row[0] for row in rows] == ["0 to 1", "evaluation after step 1", "2"]
    assert rows[1][1:3] == ["1.0 MiB", "2.0 MiB"]
    assert [row[3] for row in rows] == ["peak reserved", "", ""]


def test_the_header_says_verdict_card_and_peaks(page: Page) -> None:
    estimate = estimate_for(run())
    header = page.locator("header").inner_text()
    assert page.locator(".verdict").inner_text() == "FITS"
    for said in (estimate.gpu.device_name, "torch 2.15.0+cu132", "CUDA 13.2", estimate.caveats[0]):
        assert said in header
    for size in (estimate.peak.allocated_bytes, estimate.peak.reserved_bytes, estimate.peak.device_low_bytes):
        assert format_bytes(size) in header
    assert "enough for 99\u00a0% of runs" in header
    page.locator("details.about summary").click()
    expect(page.locator("details.about dl")).to_contain_text("3 run; peak first reached in step 0")
    expect(page.locator("details.about dl")).to_contain_text(" ".join(estimate.command), use_inner_text=True)


def test_the_page_and_the_terminal_agree_on_what_others_leave_of_the_card(open_page: OpenPage) -> None:
    estimate = replace(estimate_for(run()), used_by_others_bytes=4 * GIB)
    console = Console(file=io.StringIO(), width=100)
    text.render(estimate, console)
    said = re.search(r"needs \S+ GiB of \S+ GiB, \S+ GiB to spare", console.file.getvalue())
    assert said is not None
    assert f" of {format_bytes(estimate.gpu.total_bytes - 4 * GIB)}, " in said[0]
    page = open_page(html.render(estimate, run()))
    assert said[0] in page.locator("h1").inner_text()
    limit = estimate.gpu.total_bytes - 4 * GIB - estimate.peak.context_bytes - estimate.peak.library_bytes
    assert format_bytes(limit) in page.locator(".legend tr", has_text="limit").inner_text()


def test_a_run_out_of_memory_says_where_and_pytorchs_words(open_page: OpenPage) -> None:
    estimate = estimate_for(run(), is_out_of_memory=True)
    assert estimate.oom is not None
    header = open_page(html.render(estimate, run())).locator("header").inner_text()
    for said in ("OUT OF MEMORY", "step 1, backward", "llm/train.py:62", estimate.oom.message):
        assert said in header


def test_advice_and_leaks_are_shown_only_when_there_are_any(page: Page, open_page: OpenPage) -> None:
    rows = page.locator(".advice tbody tr").all_inner_texts()
    for advice, row in zip(ADVICE, rows, strict=True):
        assert advice.how in row
        assert format_bytes(advice.saved_bytes) in row
    assert "llm/train.py:66" in page.locator(".leaks").inner_text()
    assert "losses (a growing list of tensors" in page.locator(".leaks").inner_text()
    without = open_page(html.render(estimate_for(run()), run()))
    assert without.locator(".advice, .leaks").count() == 0


def test_the_interval_is_shown_with_its_causes(page: Page, open_page: OpenPage) -> None:
    estimate = estimate_for(run())
    rows = [row.inner_text().split("\t") for row in page.locator(".causes tbody tr").all()]
    for cause, row in zip(estimate.causes, rows, strict=False):
        above = [f"+{format_bytes(size)}" for size in (cause.above_bytes, cause.request_bytes)]
        assert [cell.replace("\u2212", "-") for cell in row] == [
            TITLES[cause.name], format_bytes(-cause.below_bytes), *above, cause.why,
        ]  # fmt: skip
    assert [cell.replace("\u2212", "-") for cell in rows[-1]] == ["Total", "-200 MiB", "+512 MiB", "+1.00 GiB", ""]
    assert len(rows) == 3
    older = open_page(html.render(replace(estimate, causes=()), run()))
    assert older.locator(".causes").count() == 0


def test_the_charts_are_drawn(page: Page) -> None:
    for canvas in (".chart canvas", ".strip canvas"):
        assert colours_in(page, canvas) > 5, canvas
    assert page.locator(".tile").count() > 2


def test_the_page_opens_at_the_peak(page: Page) -> None:
    assert chosen_event(page) == run().peak_event
    peak = sum(run().blocks[i].bytes for i in run().at_peak)
    assert page.get_by_test_id("moment-allocated").inner_text() == format_bytes(peak)
    legend = {
        category: page.locator(f".legend [data-category={category}]").inner_text()
        for category in levels(run(), run().peak_event)
    }
    assert legend == {category: format_bytes(size) for category, size in levels(run(), run().peak_event).items()}


@pytest.mark.parametrize("share", [0.02, 0.35, 0.6, 0.98])
def test_hovering_shows_the_bytes_of_each_category(page: Page, share: float) -> None:
    over = page.locator(".u-over")
    over.hover(position={"x": width_of(over) * share, "y": 100})
    tooltip = page.locator(".chart .tooltip")
    event = int(tooltip.get_attribute("data-event") or -1)
    assert abs(event - share * run().num_events) < run().num_events / 100
    cells = tooltip.locator("[data-bytes]")
    shown = cells.evaluate_all("cells => cells.map(({ dataset }) => [dataset.category, Number(dataset.bytes)])")
    assert dict(shown) == levels(run(), event)
    span = [each for each in run().spans if each.begin <= event][-1]
    assert f"step {span.step}" in tooltip.inner_text()


def test_the_highest_event_of_a_pixel_is_the_one_that_is_shown(open_page: OpenPage) -> None:
    """One event of 50,000 is the peak; were pixels sampled, it would be lost."""
    small = replace(run().blocks[0], bytes=MIB, requested_bytes=MIB)
    blocks = [replace(small, begin=2 * i, end=2 * i + 1) for i in range(25_000)]
    blocks[17_771] = replace(blocks[17_771], bytes=1000 * MIB, requested_bytes=1000 * MIB)
    peak = 2 * 17_771
    spike = Attribution(
        device=0, num_events=50_000, blocks=tuple(blocks), spans=(Span(begin=0, step=0, phase="forward"),),
        reserved=((0, 1000 * MIB),), peak_event=peak, at_peak=(17_771,), segments=(),
        fragmentation_bytes=0, slack_bytes=0,
    )  # fmt: skip
    page = open_page(html.render(estimate_for(run()), spike))
    over = page.locator(".u-over")
    over.hover(position={"x": width_of(over) * peak / 50_000, "y": 100})
    assert page.locator(".chart .tooltip").get_attribute("data-event") == str(peak)
    assert "1000 MiB" in page.locator(".chart .tooltip").inner_text()


def test_clicking_a_moment_shows_it_everywhere(page: Page) -> None:
    over = page.locator(".u-over")
    over.click(position={"x": 300, "y": 200})
    event = eventually(lambda: chosen_event(page), lambda event: event != run().peak_event)
    held = alive(run(), event)
    expect_num_rows(page, len(held))
    expect(page.locator("#block-count")).to_contain_text(format_bytes(sum(block.bytes for block in held)))
    page.locator(".crumbs button").first.click()
    expect(page.locator(".crumbs")).to_contain_text(f"in {len(held):,} blocks")
    page.locator("#to-peak").click()
    expect_event(page, run().peak_event)
    expect_num_rows(page, len(run().at_peak))


def test_wheel_drag_and_buttons_zoom(page: Page) -> None:
    whole = (0, run().num_events - 1)
    assert shown_range(page) == whole
    over = page.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.mouse.wheel(0, -200)
    wheeled = eventually(lambda: shown_range(page), lambda shown: shown[0] > 0)
    assert wheeled[1] < whole[1]

    page.mouse.dblclick(box["x"] + 200, box["y"] + 100)
    expect_range(page, *whole)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 100, steps=4)
    page.mouse.up()
    dragged = pytest.approx((whole[1] * 0.25, whole[1] * 0.5), rel=0.02)
    eventually(lambda: shown_range(page), lambda shown: shown == dragged)

    page.locator("#reset").click()
    expect_range(page, *whole)
    page.get_by_label("Show a step").select_option(label="Step 1")
    begins = [span.begin for span in run().spans if span.step == 1]
    expect(page.locator(".chart")).to_have_attribute("data-from", str(begins[0]))


def test_zoomed_to_single_events_the_chart_is_exact(page: Page) -> None:
    for _ in range(8):
        page.get_by_label("Zoom in").click()
    first, last = eventually(lambda: shown_range(page), lambda shown: shown[1] < shown[0] + 50)
    page.locator(".u-over").hover(position={"x": 600, "y": 100})
    tooltip = page.locator(".chart .tooltip")
    assert first <= int(tooltip.get_attribute("data-event") or -1) <= last
    assert "highest of" not in tooltip.inner_text()


def test_the_timeline_obeys_the_keyboard(page: Page) -> None:
    page.locator(".chart").focus()
    page.keyboard.press("ArrowRight")
    eventually(lambda: chosen_event(page), lambda event: event > run().peak_event)
    page.keyboard.press("p")
    expect_event(page, run().peak_event)
    page.keyboard.press("+")
    half = pytest.approx(run().num_events / 2, abs=2)
    eventually(lambda: shown_range(page), lambda shown: shown[1] - shown[0] == half)
    page.keyboard.press("0")
    expect_range(page, 0, run().num_events - 1)


def test_a_rank_is_picked_by_keyboard_and_the_whole_page_shows_it(open_page: OpenPage) -> None:
    first, second = ranks_for([run(), transformer(num_layers=1, num_steps=3, vocabulary=500)])
    assert second.attribution is not None
    page = open_page(html.render(first, run(), other_ranks=[second]))
    rows = [row.inner_text().split("\t") for row in page.locator(".ranks tbody tr").all()]
    assert [row[0].strip() for row in rows] == ["0", "1", "2-3"]
    assert rows[0][-1] == "needs the most"
    assert rows[1][2:7] == [
        format_bytes(size)
        for size in (
            second.peak.allocated_bytes, second.peak.reserved_bytes, second.peak.library_bytes,
            second.peak.device_bytes, second.gpu.total_bytes - second.peak.device_bytes,
        )
    ]  # fmt: skip
    assert "4 of 4 ranks were run" in page.locator("#ranks").inner_text()
    choices = page.get_by_role("radio")
    expect(choices.nth(2)).to_be_disabled()
    assert "on rank 0" in page.locator("h1").inner_text()
    choices.nth(0).focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("h1")).to_contain_text("on rank 1")
    expect(choices.nth(1)).to_be_focused()
    expect_event(page, second.attribution.peak_event)
    expect(page.get_by_test_id("moment-allocated")).to_have_text(format_bytes(second.peak.allocated_bytes))
    expect_range(page, 0, second.attribution.num_events - 1)
    page.keyboard.press("ArrowUp")
    expect_event(page, run().peak_event)


def test_bars_of_ranks_share_one_scale_and_show_what_holds_the_memory(open_page: OpenPage) -> None:
    first, second = ranks_for([run(), transformer(num_layers=1, num_steps=3, vocabulary=500)])
    page = open_page(html.render(first, run(), other_ranks=[second]))
    bars = page.locator(".ranks td.bar > div").all()
    whole, smaller = (bar.evaluate("bar => bar.getBoundingClientRect().width") for bar in bars[:2])
    assert smaller / whole == pytest.approx(second.peak.device_bytes / first.peak.device_bytes, abs=0.01)
    parameters = levels(run(), run().peak_event)["parameter"]
    title = bars[0].locator("span").first.get_attribute("title")
    assert title == f"parameter: {format_bytes(parameters)} ({parameters:,} bytes)"


def test_ranks_that_need_the_same_are_not_picked_from(open_page: OpenPage) -> None:
    estimate = ranks_for([run()])[0]
    alike = replace(estimate, ranks=(replace(estimate.ranks[0], stands_for=(0, 1, 2)),))
    page = open_page(html.render(alike, run()))
    assert "All need the same." in page.locator("#ranks").inner_text()
    assert "on each of 3 ranks" in page.locator("h1").inner_text()
    assert page.get_by_role("radio").count() == 0


@pytest.fixture
def timed(open_page: OpenPage) -> Page:
    return open_page(html.render(replace(estimate_for(run()), performance=performance()), run()))


def test_the_time_of_a_step_is_shown_only_where_it_was_estimated(timed: Page, open_page: OpenPage) -> None:
    said = timed.locator("#time").inner_text().replace("\u00a0%", "%")
    assert sentence(performance()) in said
    assert "3% of the GPU's time is of operators without a rule" in said
    figure = timed.locator(".figures > div", has_text="Step time")
    assert figure.inner_text().split("\n") == ["Step time", "400 ms", "350 to 510 ms; bound by the GPU"]
    without = open_page(html.render(estimate_for(run()), run()))
    assert without.locator("#time").count() == 0
    assert "Step time" not in without.locator("header").inner_text()


def test_kernels_and_modules_are_listed_slowest_first(timed: Page) -> None:
    classes, modules = timed.locator("#time table").all()
    rows = [row.inner_text().split("\t") for row in classes.locator("tbody tr").all()]
    assert [row[0].split("\n")[0] for row in rows] == [
        "matrix products", "attention", "elementwise operators", "optimizer kernels",
    ]  # fmt: skip
    assert rows[0][1:] == ["211 ms", "56\u00a0%", "62\u00a0%", "31\u00a0%"]
    assert modules.locator("tbody tr").count() == 10
    timed.get_by_role("button", name="Show all 12").click()
    expect(modules.locator("tbody tr")).to_have_count(12)


def test_hovering_over_a_step_says_what_runs_then(timed: Page) -> None:
    chart, said = timed.locator(".step-chart"), timed.get_by_test_id("step-moment")
    layers = chart.locator(".layer").evaluate_all("layers => layers.map(({ dataset }) => dataset.kind)")
    assert layers == [name for name, _ in performance().timeline.kernels]
    at_bucket = {
        2: "At 8 ms, forward: GPU busy 0 %, SMs active 0 %, memory bandwidth 0 %; nothing runs.",
        50: "At 200 ms, backward: GPU busy 100 %, SMs active 80 %, memory bandwidth 30 %; "
            "matrix products 60 %, attention 25 %, elementwise operators 15 %.",
        97: "At 388 ms, optimizer step: GPU busy 100 %, SMs active 80 %, memory bandwidth 0 %; "
            "optimizer kernels 100 %.",
    }  # fmt: skip
    plot = chart.locator("rect.idle")
    begin = plot.evaluate("rect => rect.x.baseVal.value")
    width = plot.evaluate("rect => rect.width.baseVal.value")
    for bucket, words in at_bucket.items():
        chart.hover(position={"x": begin + width * (bucket + 0.5) / 100, "y": 100})
        expect(said).to_have_text(words.replace(" %", "\u00a0%"))
    timed.locator("#time h2").hover()
    expect(said).to_contain_text("Point at the chart")


def test_a_step_is_walked_by_keyboard(timed: Page) -> None:
    chart, said = timed.get_by_role("slider", name="Moment of the step"), timed.get_by_test_id("step-moment")
    chart.focus()
    keys = (("ArrowRight", 0), ("ArrowRight", 4), ("Shift+ArrowRight", 44), ("ArrowLeft", 40), ("End", 396))
    for key, time_ms in keys:
        chart.press(key)
        expect(said).to_contain_text(f"At {time_ms} ms, ")
        expect(chart).to_have_attribute("aria-valuetext", said.inner_text())
    chart.press("Escape")
    expect(said).to_contain_text("Point at the chart")


def test_waits_of_the_gpu_name_what_ends_them(timed: Page) -> None:
    timed.locator(".waits summary").click()
    assert timed.locator(".waits li").all_inner_texts() == ["20 ms from 0 ms on, before aten::embedding (forward)"]


def test_the_treemap_opens_and_closes_by_mouse_and_keyboard(page: Page) -> None:
    crumbs = page.locator(".crumbs")
    assert crumbs.inner_text().split("\n")[0].startswith("all")
    before = page.locator(".tile").count()
    page.locator(".tile", has_text="layers.1").click()
    expect(crumbs).to_contain_text("layers.1")
    inside = [each for each in alive(run(), run().peak_event) if each.module and ".layers.1." in each.module]
    expect(crumbs).to_contain_text(format_bytes(sum(each.bytes for each in inside)))
    page.locator(".tile").first.focus()
    page.keyboard.press("Escape")
    expect(page.locator(".tile")).to_have_count(before)
    expect(page.locator(".tile").first).to_be_focused()
    page.keyboard.press("ArrowRight")
    second = page.locator(".tile").nth(1)
    expect(second).to_be_focused()
    name = (second.get_attribute("aria-label") or "").split(":")[0]
    page.keyboard.press("Enter")
    expect(crumbs.locator("[aria-current=true]")).to_have_text(name)
    expect(page.locator(".tile").first).to_be_focused()


def test_a_model_beside_something_large_is_shown_as_its_layers(open_page: OpenPage) -> None:
    """As in an optimizer step: else the treemap is two tiles, the model and the rest."""
    blocks = tuple(
        replace(block, module=None) if block.category == "optimizer_state" else block for block in run().blocks
    )
    page = open_page(html.render(estimate_for(run()), replace(run(), blocks=blocks)))
    assert page.locator(".crumbs button").all_inner_texts() == ["all", "Show these blocks"]
    inside = [
        block
        for block in alive(replace(run(), blocks=blocks), run().peak_event)
        if ".layers.1." in (block.module or "")
    ]
    tile = page.locator(".tile[aria-label^='LlamaForCausalLM.model.layers.1: ']")
    assert f": {format_bytes(sum(block.bytes for block in inside))}, " in (tile.get_attribute("aria-label") or "")
    assert page.locator(".tile[aria-label^='outside any module']").count() == 1
    tile.click()
    expect(page.locator(".crumbs [aria-current=true]")).to_have_text("layers.1")
    assert page.locator(".crumbs").inner_text().split("\n")[0].startswith("all")


def test_names_in_the_list_have_room(page: Page) -> None:
    assert width_of(page.locator(".list th").first) > 0.4 * width_of(page.locator(".list"))


def test_colours_of_phases_are_named(page: Page) -> None:
    said = page.locator(".phases").inner_text()
    assert [phase for phase in ("forward", "backward", "optimizer step", "evaluation") if phase in said] == [
        "forward", "backward", "optimizer step",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("grouping", "expected"), [("category", "optimizer state"), ("source", "llm/train.py"), ("module", "layers.0")]
)
def test_holders_are_grouped_as_chosen(page: Page, grouping: str, expected: str) -> None:
    page.locator(f"[data-grouping={grouping}]").click()
    expect(page.locator(".list")).to_contain_text(expected)


def test_blocks_of_a_holder_are_found_in_the_table(page: Page) -> None:
    page.locator("[data-grouping=category]").click()
    page.locator(".list button", has_text="parameter").click()
    page.locator("#show-blocks").click()
    expected = [each for each in alive(run(), run().peak_event) if each.category == "parameter"]
    expect_num_rows(page, len(expected))


def test_a_segment_says_which_block_is_where(page: Page) -> None:
    largest = max((s for s in run().segments if any(b is not None for _, _, b in s.parts)), key=lambda s: s.bytes)
    block = next(run().blocks[number] for _, _, number in largest.parts if number is not None)
    page.locator(".strip canvas").first.hover(position={"x": 3, "y": 5})
    said = page.locator(".strip .tooltip").inner_text()
    assert f"{block.bytes:,} bytes" in said
    assert block.module is not None
    assert block.module in said
    summary = page.locator("#segments > p").first.inner_text()
    assert f"{len(run().segments)} segments" in summary
    assert format_bytes(run().fragmentation_bytes) in summary


def test_segments_are_walked_by_keyboard(page: Page) -> None:
    page.locator(".strip canvas").first.focus()
    page.keyboard.press("ArrowRight")
    tooltip = page.locator(".strip .tooltip")
    first = tooltip.inner_text()
    page.keyboard.press("ArrowRight")
    eventually(tooltip.inner_text, lambda said: said != first)


@pytest.mark.parametrize("moment", ["p", "Home"])
def test_a_part_of_a_segment_is_found_in_the_table_whatever_was_shown_there(page: Page, moment: str) -> None:
    page.locator(".chart").focus()
    page.keyboard.press(moment)
    page.get_by_label("Search blocks").fill("no such thing")
    page.locator("[data-filter=buffer]").click()
    page.locator(".strip canvas").first.focus()
    page.keyboard.press("ArrowRight")
    said = page.locator(".strip .tooltip").inner_text()
    page.keyboard.press("Enter")
    row = expect_first_row(page, lambda block: f"{block.bytes:,} bytes" in said)
    assert row.module in said.splitlines()
    expect(page.locator(".blocks")).to_be_in_viewport()


def test_the_table_sorts(page: Page) -> None:
    blocks = run().blocks
    page.locator("#only-alive").uncheck()
    expect_num_rows(page, len(blocks))
    expect_first_row(page, lambda row: row.bytes == max(block.bytes for block in blocks))
    page.locator("[data-column=bytes]").click()
    expect_first_row(page, lambda row: row.bytes == min(block.bytes for block in blocks))
    page.locator("[data-column=step]").click()
    expect_first_row(page, lambda row: row.step == max(block.step for block in blocks))
    page.locator("[data-column=module]").click()
    expect_first_row(page, lambda row: row.module == min(block.module for block in blocks if block.module))
    expect(page.locator("[aria-sort=ascending]")).to_have_text(re.compile("^Module"))


def test_a_size_says_what_was_requested(page: Page) -> None:
    page.locator("#only-alive").uncheck()
    page.get_by_label("Search blocks").fill("inv_freq")
    expect_first_row(page, lambda buffer: (buffer.bytes, buffer.requested_bytes) == (512, 256))
    size = page.locator("#row-0 [role=gridcell]").first
    expect(size).to_have_attribute("title", "512 B (512 bytes), 256 requested")


def test_the_table_searches_all_words(page: Page) -> None:
    page.locator("#only-alive").uncheck()
    page.get_by_label("Search blocks").fill("layers.2 SILU")
    expected = [each for each in run().blocks if each.operator == "aten::silu" and ".layers.2." in (each.module or "")]
    assert len(expected) == 3
    expect_num_rows(page, len(expected))
    expect_first_row(page, lambda row: row in expected)
    page.get_by_label("Search blocks").fill("no such thing")
    expect(page.locator(".blocks")).to_contain_text("No matching blocks.")


def test_the_table_filters_by_category(page: Page) -> None:
    page.locator("[data-filter=activation]").click()
    page.locator("[data-filter=input]").click()
    wanted = [each for each in alive(run(), run().peak_event) if each.category in ("activation", "input")]
    expect_num_rows(page, len(wanted))
    page.locator("[data-filter=activation]").click()
    page.locator("[data-filter=input]").click()
    expect_num_rows(page, len(run().at_peak))


def test_the_table_holds_only_the_rows_in_view_and_reaches_the_last(page: Page) -> None:
    page.locator("#only-alive").uncheck()
    expect_num_rows(page, len(run().blocks))
    assert page.locator(".rows .row").count() < 60
    page.locator(".blocks").focus()
    page.keyboard.press("End")
    last = page.locator(f"#row-{len(run().blocks) - 1}.active")
    smallest = run().blocks[int(last.get_attribute("data-block") or -1)]
    assert smallest.bytes == min(block.bytes for block in run().blocks)
    page.keyboard.press("Enter")
    expect_event(page, smallest.begin)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_switch(open_page: OpenPage, scheme: str) -> None:
    page = open_page(html.render(estimate_for(run()), run()), scheme=scheme)
    other = {"light": "dark", "dark": "light"}[scheme]
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", other)
    assert page.evaluate(background) != before


def test_tab_reaches_every_part_and_focus_is_seen(open_page: OpenPage) -> None:
    estimate = replace(estimate_for(run()), advice=ADVICE, leaks=LEAKS, performance=performance())
    page = open_page(html.render(estimate, run()))
    reached: set[str] = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        where, outline = page.evaluate(
            """() => [document.activeElement.closest("section")?.id ?? "header",
                      getComputedStyle(document.activeElement).outlineStyle]"""
        )
        if page.evaluate("document.activeElement !== document.body"):
            reached.add(where)
            assert outline != "none", page.evaluate("document.activeElement.outerHTML")
    assert {"header", "time", "timeline", "holders", "segments", "blocks"} <= reached


def test_nothing_is_wider_than_a_phone(open_page: OpenPage) -> None:
    estimate = estimate_for(run(), is_out_of_memory=True)
    first, second = ranks_for([run(), transformer(num_layers=1, num_steps=3, vocabulary=500)])
    everything = replace(
        estimate, advice=ADVICE, leaks=LEAKS, performance=performance(), world=first.world, ranks=first.ranks
    )
    page = open_page(html.render(everything, run(), other_ranks=[second]), width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.locator(".strip canvas").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".filters .chip").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert colours_in(page, ".chart canvas") > 5


def test_names_that_are_html_stay_text(open_page: OpenPage) -> None:
    evil = "</title></script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    blocks = tuple(
        replace(block, name=evil, module=f"{evil}.inner", operator=evil, where=f"/a/{evil}.py:3")
        for block in run().blocks
    )
    estimate = estimate_for(run(), is_out_of_memory=True)
    assert estimate.oom is not None
    estimate = replace(
        estimate, command=(evil,), caveats=(evil,), torch_version=evil,
        oom=replace(estimate.oom, message=evil, where=evil), gpu=replace(estimate.gpu, device_name=evil),
    )  # fmt: skip
    advice = (replace(ADVICE[0], title=evil, how=evil, price=evil),)
    leaks = (replace(LEAKS[0], where=evil, module=evil, held_by=(evil,)),)
    page = open_page(html.render(replace(estimate, advice=advice, leaks=leaks), replace(run(), blocks=blocks)))
    page.locator("[data-grouping=source]").click()
    page.locator(".tile").first.hover()
    page.locator(".treemap .tooltip").wait_for()
    page.locator(".strip canvas").first.hover(position={"x": 3, "y": 5})
    page.locator(".strip .tooltip").wait_for()
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert evil in page.locator(".caveats").inner_text()
    assert evil in page.title()


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_run_that_holds_nothing_is_shown_too(open_page: OpenPage, num_blocks: int) -> None:
    nearly_empty = replace(
        run(), num_events=num_blocks, blocks=run().blocks[:num_blocks], spans=(), reserved=(), peak_event=0,
        at_peak=(0,) * num_blocks, segments=(), fragmentation_bytes=0, slack_bytes=0,
    )  # fmt: skip
    page = open_page(html.render(estimate_for(run()), nearly_empty))
    expect_num_rows(page, num_blocks)


def test_half_a_million_events_open(open_page: OpenPage) -> None:
    """In processor time, as that does not depend on what else the machine does; benchmarks/page.py has the clock's."""
    large = transformer(num_layers=32, num_steps=220, hidden=4096, has_equal_batches=False)
    assert large.num_events >= 500_000
    assert len(large.blocks) >= 250_000
    rendered = html.render(estimate_for(large), large)
    assert len(rendered.encode()) < MAX_FILE_BYTES
    sessions: list[CDPSession] = []

    def measure(page: Page) -> None:
        sessions.append(page.context.new_cdp_session(page))
        sessions[0].send("Performance.enable", {"timeDomain": "threadTicks"})

    page = open_page(rendered, before_opening=measure)
    metrics = {each["name"]: each["value"] for each in sessions[0].send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 5
    page.locator("#only-alive").uncheck()
    expect_num_rows(page, len(large.blocks))
    page.locator(".blocks").focus()
    page.keyboard.press("End")
    page.locator(f"#row-{len(large.blocks) - 1}").wait_for()
