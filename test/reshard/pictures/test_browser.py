# SPDX-License-Identifier: Apache-2.0
"""The pages in a real browser: they load without the network, the slider moves, and the pictures show all parts."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.pictures.colours import FILLS

_spec = importlib.util.spec_from_file_location("chromium", Path(__file__).with_name("chromium.py"))
chromium = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(chromium)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.executable() is None, reason="needs chromium: apt-get install chromium"),
]

ROOT = Path(__file__).resolve().parents[3]
PROBLEM = {"mesh": "x=4,y=2", "shape": (16, 16, 16)}
NOW = "document.querySelector('.state.now')"


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    command = [sys.executable, "-m", "reshard.tools.reshard_opt", "docs/tiny.mlir", "--compile-for=cpu:8"]
    subprocess.run(
        [*command, "--report=html", f"--report-file={path}", "-o", "/dev/null"], check=True, cwd=ROOT, timeout=300
    )
    return path


@pytest.fixture
def page(browser, report):
    browser.resize(1280, 1000)
    browser.emulate()
    browser.open(report.as_uri())
    return browser


def share(pixels: np.ndarray, colour: str) -> float:
    """Returns the share of a picture's pixels that have a colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return float((np.abs(pixels.astype(int) - wanted).max(axis=-1) <= 2).mean())


def test_page_loads_without_errors_and_asks_nothing_of_the_network(page, report):
    assert page.errors == []
    assert {url.partition("?")[0] for url in page.requests} <= {"about:blank", report.as_uri()}
    assert page.evaluate("document.querySelectorAll('h1').length") == 1


def test_parts_are_there(page):
    headings = page.evaluate("[...document.querySelectorAll('h2,h3')].map(each => each.textContent)")
    for part in (
        "The whole module, as XLA compiles it",
        "Sites",
        "Steps",
        "Who holds what",
        "Memory per device",
        "Where the bytes go",
        "Rejected alternatives",
    ):
        assert part in headings
    assert page.evaluate("document.querySelector('table caption').textContent") == "Collectives that run"


def test_slider_moves_by_arrow_keys_and_buttons(page):
    assert page.evaluate(f"{NOW}.dataset.title") == "before"
    page.evaluate("document.querySelector('.bar input').focus()")
    page.key("ArrowRight")
    after = "after step 2: all_to_all x: dim 2 -> 1, y: dim 0 -> 1"
    assert page.evaluate(f"{NOW}.dataset.title") == after
    assert page.evaluate("document.querySelector('.bar output').textContent") == "step 2 of 3"
    page.evaluate("document.querySelector('.bar .back').click()")
    assert page.evaluate(f"{NOW}.dataset.title") == "before"


def test_address_presets_the_step(browser, report):
    browser.open("data:text/html,")
    browser.open(f"{report.as_uri()}#site-0=1")
    assert browser.evaluate(f"{NOW}.dataset.title").startswith("after step 2")


def test_picture_shows_the_blocks_and_changes_with_the_step(page):
    before = page.screenshot(".steps")
    for fill in FILLS[:8]:
        assert share(before, fill) > 0.003, f"{fill} is hardly in the picture"
    page.evaluate("document.querySelector('.bar .on-').click()")
    after = page.screenshot(".steps")
    for fill in FILLS[:8]:
        assert share(after, fill) > 0.003
    assert before.shape != after.shape or (before != after).any(axis=-1).mean() > 0.02


def test_memory_and_traffic_are_drawn(page):
    memory, traffic = (
        page.screenshot(selector) for selector in ("svg[aria-label^='memory']", "svg[aria-label^='bytes from']")
    )
    assert all(share(memory, colour) > 0.01 for colour in ("#3a73a8", "#77aadd", "#eedd88"))
    assert share(traffic, "#372f6b") > 0.2


def test_dark_readers_get_a_dark_page(page):
    light = page.screenshot("h1").mean()
    page.emulate(scheme="dark")
    assert page.screenshot("h1").mean() < 80 < 180 < light


def test_paper_shows_every_step(page):
    hidden = "[...document.querySelectorAll('.state')].filter(each => each.getBoundingClientRect().height == 0).length"
    assert page.evaluate(hidden) == 1
    page.emulate(media="print")
    assert page.evaluate(hidden) == 0


@pytest.mark.parametrize("width", [360, 700, 1280])
def test_nothing_sticks_out_of_a_window(page, width):
    page.resize(width, 900)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_texts_of_a_picture_do_not_overlap(page):
    """No two texts of one SVG cover the same place."""
    overlaps = """
      [...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text')].map(each => each.getBoundingClientRect()).filter(box => box.width);
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
          Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3
        ).map(() => svg.getAttribute('aria-label')));
      })"""  # noqa: E501
    assert page.evaluate(overlaps) == []


def test_a_wide_mesh_stays_on_its_page(browser, tmp_path):
    drawn = reshard.visualize(reshard.plan('[{"x"}, {"y"}]', '[{"y"}, {"x"}]', mesh="x=64,y=64", shape=(8192, 8192)))
    drawn.save(tmp_path / "wide.html")
    browser.open("data:text/html,")
    browser.resize(1280, 1000)
    browser.open((tmp_path / "wide.html").as_uri())
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    assert browser.evaluate("document.querySelectorAll('.now .dev').length") == 12


def test_notebook_frame_runs_its_script(browser, tmp_path):
    drawn = reshard.visualize(reshard.plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=4", shape=(8, 8)))
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{drawn._repr_html_()}</body>")
    browser.open("data:text/html,")
    browser.errors.clear()
    browser.open((tmp_path / "cell.html").as_uri())
    deadline = time.monotonic() + chromium.WAIT_S  # the browser draws a frame after the page around it has loaded
    while not all(share(browser.screenshot("iframe"), fill) > 0.002 for fill in FILLS[:4]):
        assert time.monotonic() < deadline, "the frame stays empty"
    assert browser.errors == []
