"""The report as a browser shows it; skipped where there is no Chromium."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import report_runs

from zoo.progress import Reporter
from zoo.report import site

webdriver = pytest.importorskip("selenium.webdriver")
pytest.importorskip("plotly")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of trained runs with hostile names, of glyphs, and of a sweep."""
    from zoo import config, runner

    root = tmp_path_factory.mktemp("report")
    quiet = Reporter(quiet=True)
    for seed in (0, 1):
        report_runs.trained(root / "runs", seed)
    settings = ["train.iterations=3", "device=cpu", f"output={root / 'runs'}"]
    runner.run(config.load("ice_glyphs", settings), reporter=quiet)
    for scale, recall, name in ((1, 0.4, "swept"), (16, 0.9, "other"), (64, 0.7, "swept")):
        overrides = [f"loss.scale={scale}", f"name={name}"]
        report_runs.made_up(root / "runs", "ice_glyphs", *overrides, recall=recall)
    site.build(root / "runs", root / "site", queries=8, items=60, reporter=quiet)
    return root / "site"


@pytest.fixture(scope="module")
def chromium():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """A browser as wide as a desktop, light; afterwards it must have had nothing to complain of."""
    look(chromium, 1440, 900)
    yield chromium
    assert [entry["message"] for entry in chromium.get_log("browser")] == []


def look(browser, width, height, dark=False):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def show(browser, page, *parts):
    browser.get(Path(page, *parts).as_uri())
    until(lambda: browser.execute_script("return document.readyState") == "complete")


def run_page(report, beginning="ice_-b"):
    return next(iter(sorted((report / "runs").glob(f"{beginning}*.html"))))


def until(true):
    """Wait for something that a browser does in its own time."""
    for _ in range(300):
        found = true()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail("it did not happen")


def run(browser, script, *arguments):
    return browser.execute_script(f"return {script}", *arguments)


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


ROWS = "[...document.querySelectorAll('.sortable tbody:not([hidden]) a:first-child')]"
NAMES = f"{ROWS}.filter(a => a.closest('th')).map(a => a.textContent)"


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1440, False)])
def test_no_page_complains_asks_the_network_or_is_too_wide(report, browser, width, dark):
    browser.get_log("performance")
    look(browser, width, 800, dark)
    for page in [report / "index.html", *(report / "runs").iterdir()]:
        show(browser, page)
        assert run(browser, "document.documentElement.scrollWidth") <= width
    sent = [e["message"] for e in browser.get_log("performance")]
    asked = [m for m in sent if '"Network.requestWillBeSent"' in m]
    assert asked
    assert not [m for m in asked if '"url":"http' in m or '"url":"ws' in m]


def test_a_table_is_sorted_by_buttons_that_tell_how(report, browser):
    show(browser, report, "index.html")
    table = "[...document.querySelectorAll('table')].find(t => t.textContent.includes('swept'))"
    states = (
        f"[...{table}.querySelectorAll('thead [aria-sort]')].map(h => h.getAttribute('aria-sort'))"
    )
    values = f"[...{table}.tBodies].map(b => Number(b.rows[0].cells[1].dataset.value))"
    first = run(browser, values)
    assert first == sorted(first, reverse=True)
    assert run(browser, states)[:3] == ["none", "descending", "none"]
    run(browser, f"{table}.querySelectorAll('.sort')[1].focus()")
    press(browser, "\ue007")  # Enter
    assert run(browser, values) == sorted(first)
    assert run(browser, states)[:3] == ["none", "ascending", "none"]
    press(browser, " ")
    assert run(browser, values) == first
    run(browser, f"{table}.querySelector('.sort').click()")
    names = run(browser, f"[...{table}.tBodies].map(b => b.rows[0].cells[0].dataset.value)")
    assert names == ["other", "swept", "swept"]


def test_a_filter_leaves_what_has_all_words(report, browser):
    show(browser, report, "index.html")
    assert len(run(browser, NAMES)) == 5
    run(browser, "document.querySelector('label[for=filter]').click()")
    press(browser, "SWEPT scale=64")
    assert run(browser, NAMES) == ["swept"]
    assert run(browser, "document.getElementById('shown').textContent") == "1 of 5 shown"
    assert run(browser, "document.querySelectorAll('.board:not([hidden])').length") == 1
    press(browser, *["\ue003"] * 20)
    assert len(run(browser, NAMES)) == 5


def test_hostile_names_are_text(report, browser):
    show(browser, report, "index.html")
    assert "ice_<b>&" in run(browser, NAMES)
    show(browser, run_page(report))
    text = run(browser, "document.body.innerText")
    assert "<script>alert(1)</script> test" in text
    assert run(browser, "document.querySelectorAll('main b b, img[src=x]').length") == 0


def test_charts_are_drawn(report, browser):
    show(browser, report, "index.html")
    until(
        lambda: run(browser, "document.querySelectorAll('.plot .scatterlayer .point').length") == 3
    )
    ticks = run(browser, "[...document.querySelectorAll('.xtick text')].map(t => t.textContent)")
    assert ticks == ["1", "16", "64"]
    show(browser, run_page(report))
    until(lambda: run(browser, "document.querySelectorAll('.plot svg.main-svg').length") >= 3)


def test_the_theme_can_be_chosen_and_stays(report, browser):
    ground = "getComputedStyle(document.body).backgroundColor"
    show(browser, report, "index.html")
    light = run(browser, ground)
    look(browser, 1440, 900, dark=True)
    until(lambda: run(browser, ground) != light)
    dark = run(browser, ground)
    run(browser, "document.getElementById('theme').click()")
    assert run(browser, ground) == light
    show(browser, run_page(report))
    assert run(browser, ground) == light
    run(browser, "document.getElementById('theme').click()")
    assert run(browser, ground) == dark
    run(browser, "localStorage.clear()")


def test_the_gallery_is_turned_by_keyboard(report, browser):
    show(browser, run_page(report))
    shown = "[...document.querySelectorAll('.query:not([hidden])')].map(q => q.innerText)"
    told = "document.querySelector('.gallery output').textContent"
    first = run(browser, shown)
    assert len(first) == 6
    assert run(browser, told) == "Queries 1 to 6 of 8"
    run(browser, "document.querySelector('.gallery').focus()")
    press(browser, "\ue014")  # arrow right
    assert run(browser, told) == "Queries 7 to 8 of 8"
    assert not set(run(browser, shown)) & set(first)
    assert run(browser, "document.querySelector('[data-step=\"1\"]').disabled")
    press(browser, "\ue012")  # arrow left
    assert run(browser, shown) == first
    press(browser, "\ue004", "\ue007")  # Tab to the button that can be pressed, Enter
    assert run(browser, told) == "Queries 7 to 8 of 8"
    marks = run(browser, "[...document.querySelectorAll('.found .mark')].map(m => m.textContent)")
    classes = run(browser, "[...document.querySelectorAll('.found li')].map(m => m.className)")
    assert marks == [{"right": "✓", "wrong": "✗"}[name] for name in classes]
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth && i.src).length"
    assert run(browser, broken) == 0


def place_of_an_item(browser):
    """Return where a dot of the map is in the window, and the class that it has."""
    return run(
        browser,
        """(() => {
          const map = document.getElementById('tsne');
          map.scrollIntoView({block: 'center'});
          const point = map.querySelector('.scatterlayer .point').getBoundingClientRect();
          return [point.x + point.width / 2, point.y + point.height / 2];
        })()""",
    )


def hover(browser, x, y):
    event = {"type": "mouseMoved", "x": x, "y": y}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def mouse(browser, what, x, y, count=1):
    event = {"type": what, "x": x, "y": y, "button": "left", "clickCount": count}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def test_the_map_shows_a_thumbnail_on_hover(report, browser):
    show(browser, run_page(report))
    until(
        lambda: run(browser, "document.querySelectorAll('#tsne .scatterlayer .point').length") > 50
    )
    assert run(browser, "document.getElementById('tip').hidden")
    x, y = place_of_an_item(browser)
    hover(browser, x - 2, y)
    hover(browser, x, y)
    until(lambda: not run(browser, "document.getElementById('tip').hidden"))
    until(lambda: run(browser, "document.querySelector('#tip img').naturalWidth") == 24)
    text = run(browser, "document.querySelector('#tip').innerText")
    assert any(f"{name} test\n" in text for name in report_runs.HOSTILE)
    assert run(browser, "document.getElementById('tsne').data[2].x.length") == 6  # its class
    hover(browser, 5, 5)
    until(lambda: run(browser, "document.getElementById('tip').hidden"))


def test_the_map_is_zoomed_by_keyboard_and_by_buttons(report, browser):
    show(browser, run_page(report))
    width = "(r => r[1] - r[0])(document.getElementById('tsne').layout.xaxis.range)"
    until(lambda: run(browser, "!!document.getElementById('tsne').layout"))
    whole = run(browser, width)
    pictures = "document.getElementById('tsne').layout.images.length"
    assert run(browser, pictures) > 5
    run(browser, "document.getElementById('tsne').focus()")
    press(browser, "+")
    assert run(browser, width) == pytest.approx(0.6 * whole)
    left = run(browser, "document.getElementById('tsne').layout.xaxis.range[0]")
    press(browser, "\ue012")
    assert run(browser, "document.getElementById('tsne').layout.xaxis.range[0]") < left
    press(browser, "0")
    assert run(browser, width) == pytest.approx(whole)
    run(browser, "document.getElementById('zoom-in').click()")
    assert run(browser, width) < whole
    run(browser, "document.getElementById('pictures').click()")
    assert not run(browser, "document.getElementById('tsne').layout.images")
    assert (
        run(browser, "document.getElementById('pictures').getAttribute('aria-pressed')") == "false"
    )


def test_the_map_is_zoomed_by_dragging_and_a_double_click_shows_all(report, browser):
    show(browser, run_page(report))
    width = "(r => r[1] - r[0])(document.getElementById('tsne').layout.xaxis.range)"
    until(lambda: run(browser, "!!document.getElementById('tsne').layout"))
    whole = run(browser, width)
    x, y = place_of_an_item(browser)
    mouse(browser, "mousePressed", x, y)
    for step in range(1, 11):
        mouse(browser, "mouseMoved", x + 12 * step, y + 12 * step)
    mouse(browser, "mouseReleased", x + 120, y + 120)
    until(lambda: run(browser, width) < 0.5 * whole)
    time.sleep(0.5)  # two clicks after a drag, not three
    for count in (1, 2):
        mouse(browser, "mousePressed", x + 60, y + 60, count)
        mouse(browser, "mouseReleased", x + 60, y + 60, count)
    until(lambda: run(browser, width) == pytest.approx(whole))


def test_a_class_is_marked_by_its_name(report, browser):
    show(browser, run_page(report))
    run(browser, "document.getElementById('class').focus()")
    press(browser, f"{report_runs.HOSTILE[0]} test")
    assert run(browser, "document.getElementById('marked').textContent") == "6 marked"


def test_what_has_the_focus_is_seen(report, browser):
    show(browser, report, "index.html")
    for _ in range(5):
        press(browser, "\ue004")
        assert run(browser, "getComputedStyle(document.activeElement).outlineStyle") == "solid"
