"""The page in a real browser: what a reader clicks works, nothing complains, nothing is fetched."""

import json

import pytest

from lowcurve.report.page import render
from tests.report.example import CURVE, IMAGES, OUTLINES, example, records
from tests.report.test_hostile import evil
from tests.report.webdriver import Browser, unavailable

pytestmark = [pytest.mark.browser, pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))]

COLUMN = "return [...document.querySelectorAll('table.numbers tbody tr')].map(r => r.cells[arguments[0]].dataset.value)"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    verdicts = example().verdicts
    verdicts = [*verdicts, {**verdicts[0], "verdict": "does not hold"}]
    extra = {"outlines": OUTLINES, "images": IMAGES}
    path.write_text(render([example(curves=[CURVE], verdicts=verdicts, extra=extra)], records()))
    browser = Browser(str(folder / "profile"))
    browser.go(path.as_uri())
    yield browser
    browser.close()


def shown(page, selector):
    return page.run("return getComputedStyle(document.querySelector(arguments[0])).display !== 'none'", selector)


def test_a_table_sorts_by_mouse_and_by_keyboard(page):
    header = "table.numbers thead th:nth-child(4)"
    page.click(f"{header} button")
    assert page.run(COLUMN, 3)[:2] == ["10.0", "110.0"]
    page.type(f"{header} button", "enter")
    assert page.run(COLUMN, 3)[:2] == ["110.0", "10.0"]
    assert {*page.run(COLUMN, 3)[2:]} == {""}  # what was not measured stays below
    assert page.run("return document.querySelector(arguments[0]).ariaSort", header) == "descending"


def test_the_papers_numbers_are_a_toggle(page):
    assert shown(page, "td .paper")
    page.type("#show-paper", "space")
    assert not shown(page, "td .paper")
    page.click("#show-paper")
    assert shown(page, "td .paper")


def test_the_slider_moves_the_boundary(page):
    visible = "return [...document.querySelectorAll('g.net')].map(g => getComputedStyle(g).display !== 'none')"
    assert page.run(visible) == [True, False, False]
    page.type(".slider input", "right", "right")
    assert page.run(visible) == [False, False, True]
    assert page.run("return document.querySelector('output').textContent") == "β = 1000"
    assert page.run("return document.querySelector('.slider input').getAttribute('aria-valuetext')") == "β = 1000"


def test_points_tell_their_values_to_mouse_and_keyboard(page):
    tip = "const t = document.getElementById('tip'); return t.hidden ? null : t.textContent"
    page.run("document.querySelector('svg.chart').scrollIntoView({block: 'center', behavior: 'instant'})")
    page.hover("svg.chart .series circle:nth-of-type(2)")
    assert page.run(tip) == "LCNN, 0.01: 0.1"
    page.hover("h1")
    page.run("document.querySelector('.series').focus({focusVisible: true})")
    page.type(".series", "right", "right")
    assert page.run(tip) == "LCNN, 0.1: 1"


def test_colors_follow_the_system_and_the_choice(page):
    back = "return getComputedStyle(document.body).backgroundColor"
    light = {"name": "prefers-color-scheme", "value": "light"}
    page.devtools("Emulation.setEmulatedMedia", features=[light])
    assert page.run(back) == "rgb(255, 255, 255)"
    page.devtools("Emulation.setEmulatedMedia", features=[{**light, "value": "dark"}])
    assert page.run(back) == "rgb(20, 23, 27)"
    page.run("const s = document.getElementById('theme'); s.value = 'light'; s.dispatchEvent(new Event('change'))")
    assert page.run(back) == "rgb(255, 255, 255)"
    page.run("const s = document.getElementById('theme'); s.value = ''; s.dispatchEvent(new Event('change'))")


def test_a_phone_scrolls_tables_not_the_page(page):
    page.run("document.activeElement.blur()")  # and with it goes the tip of the point that had the focus
    page.devtools("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    wide = page.run(
        """return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, pre'))
        .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"""
    )
    assert page.run("return [innerWidth, document.documentElement.clientWidth]") == [360, 360]
    assert wide == 0
    page.devtools("Emulation.clearDeviceMetricsOverride")


def test_a_link_to_a_run_opens_it(page):
    page.run("location.hash = '#run-digits-resnet18-lcnn-s0-22222222'; window.dispatchEvent(new Event('hashchange'))")
    assert page.run("return document.getElementById('run-digits-resnet18-lcnn-s0-22222222').open")


def test_text_has_enough_contrast_in_both_themes(page):
    luminance = """
      const value = (color) => { const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map((v) => v / 255)
        .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
      const back = value(getComputedStyle(document.body).backgroundColor);
      return arguments[0].map((s) => { const c = value(getComputedStyle(document.querySelector(s)).color);
        return (Math.max(c, back) + 0.05) / (Math.min(c, back) + 0.05); });"""
    selectors = ["body", "small", "a[href]", "strong.holds", "strong.fails", "figcaption", "td .paper"]
    for scheme in ("light", "dark"):
        page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert min(page.run(luminance, selectors)) >= 4.5


def test_every_control_and_picture_has_a_name(page):
    nameless = page.run(
        """return [...document.querySelectorAll('button, input, select, img, svg, [role=region]')].filter((e) =>
        !(e.textContent.trim() || e.ariaLabel || e.getAttribute('alt') || (e.labels && e.labels.length))).length"""
    )
    assert nameless == 0


def test_nothing_complains_and_nothing_is_fetched(page):
    assert [entry for entry in page.log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in page.log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [address for address in asked if address.startswith(("http", "ws", "ftp"))] == []


def test_hostile_text_does_nothing(page, tmp_path):
    """Texts of a hostile result are shown; a script that came in all the same would not run."""
    path = tmp_path / "hostile.html"
    path.write_text(render([evil()], records()))
    page.go(path.as_uri())
    page.type(".slider input", "right")
    assert "<script>" in page.run("return document.querySelector('output').textContent")
    page.run("document.querySelectorAll('thead button').forEach((button) => button.click())")
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.run("return document.title") == "lowcurve results"
    assert page.run("return document.querySelectorAll('script').length") == 1
    assert page.run("return [...document.images].every((i) => i.src.startsWith('data:'))")
    assert [entry for entry in page.log("browser") if entry["level"] == "SEVERE"] == []
    page.run(
        """const script = document.createElement('script'); script.textContent = 'document.title = "owned"';
        document.body.append(script);
        const picture = document.createElement('div'); document.body.append(picture);
        picture.innerHTML = '<img src="data:," onerror="document.title = &quot;owned&quot;">'"""
    )
    assert page.run("return new Promise((done) => setTimeout(() => done(document.title), 200))") == "lowcurve results"
