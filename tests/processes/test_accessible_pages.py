"""Pages are read on a phone, in the dark, and by keyboard: axe-core finds no fault in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdist.base.trace import summary
from hpcdist.base.trace.advice import advise
from hpcdist.launch import job_report
from tests.support import browser
from tests.support.recorded_jobs import job

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-")
RAN = {
    "script": "train.py",
    "command": "python -m hpcdist --pservers 2 --trace run train.py",
    "versions": "hpcdist 1.0, Python 3.11.7",
    "unix_ns": 1_700_000_000_000_000_000,
    "began_ns": 1,
    "written_ns": 65_000_000_000,
    "cores": 4,
    "busy": 3.5,
    "own": 0.5,
    "bytes_per_s": 1e10,
    "flops_per_s": 1e11,
    "call_s": 1e-7,
}


SITE = Path(__file__).parents[2] / "build/site"


@pytest.fixture(scope="module")
def page():
    with browser.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of a job that failed, with all that a page can have."""
    pytest.importorskip("jinja2", reason="pip install jinja2")
    found = [replace(rank, of=replace(rank.of, **RAN)) for rank in job(busy_us=(600, 600, 2000))]
    ranks = [summary.summarize(rank) for rank in found]
    metrics = {"loss": {k: [(s, (k + 1) / (s + 1)) for s in range(40)] for k in (0, 1)}}
    path = tmp_path_factory.mktemp("report") / "job.html"
    said = {0: "rank 0 failed\nFileNotFoundError: " + "a/long/path" * 20}
    path.write_text(job_report.page(found, ranks, advise(found, ranks), "run", said, metrics))
    return browser.url_of(path)


def test_faults_of_a_page_are_seen(page):
    page.set_content("<p style='color: #bbb; background: #ccc'>hard to read<button></button>")
    found = {line.partition(":")[0] for line in browser.violations(page)}
    assert {"color-contrast", "button-name", "html-has-lang"} <= found


def test_a_report_has_no_fault_at_any_width_in_any_colours(page, report):
    for form in browser.in_every_form(page, report):
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert browser.violations(page) == [], form
        assert browser.overflow(page) <= 0, form


def test_all_columns_of_the_ranks_are_seen_at_any_width(page, report):
    for form in browser.in_every_form(page, report):
        table = page.locator("[aria-label=Ranks]")
        assert table.evaluate("e => e.scrollWidth <= e.clientWidth"), form
        told = "getComputedStyle(e.querySelector('td:last-child'), ':before').content"
        assert "garbage collection" in table.evaluate(f"e => e.innerText + {told}")


def test_a_report_is_read_by_keyboard(page, report):
    page.goto(report)
    page.focus(".plot")
    told = page.locator(".plot output").first
    assert told.text_content() == ""
    for key, number in (("ArrowRight", 0), ("ArrowRight", 1), ("End", -1)):
        page.keyboard.press(key)
        assert told.text_content().split(":")[0].startswith("seconds"), number
    page.locator(".plot").nth(1).focus()
    page.keyboard.press("Home")
    assert page.locator(".plot output").nth(1).text_content() == "step 0: rank 0 1, rank 1 2"
    page.focus(".graph svg")
    view = page.get_attribute(".graph svg", "viewBox")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute(".graph svg", "viewBox") != view
    page.keyboard.press("Home")
    all_of_it = page.get_attribute(".graph svg", "viewBox")
    page.keyboard.press("+")
    assert page.get_attribute(".graph svg", "viewBox") not in (view, all_of_it)


def test_a_report_tells_values_under_the_pointer(page, report):
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(report)
    plot = page.locator(".plot").nth(1)
    plot.scroll_into_view_if_needed()
    box = plot.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 17, box["y"] + 50)
    assert plot.locator("output").text_content() == "step 39: rank 0 0.025, rank 1 0.05"


def test_a_report_has_a_head(page, report):
    page.goto(report)
    assert page.title() == "hpcdist: train.py"
    head = page.locator("header").inner_text()
    for part in ("command of a rank", "--trace run", "2023-11-1", "1 min 5 s", "hpcdist 1.0"):
        assert part in head
    assert "5: 3 trainers, 2 servers on n0, n1" in head
    assert "n0: 4 cores, 3.5 busy, 0.5 of them for this job" in head


@pytest.mark.skipif(not SITE.exists(), reason="the documentation is not built: make site")
@pytest.mark.parametrize("name", ["tutorials/first_job", "faq"])
def test_a_page_of_the_documentation_has_no_fault(page, name):
    for form in browser.in_every_form(page, browser.url_of(SITE / name / "index.html")):
        assert browser.violations(page) == [], form
        assert browser.overflow(page) <= 0, form
