"""A real headless browser, and pages that may load nothing from the network.

The browser is Chromium: Playwright's own, or one of the system. Without either the tests are skipped and say so.
"""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

SYSTEM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOCAL = ("file:", "data:", "blob:", "about:")


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """A headless Chromium, as playwright.sync_api.Browser; a skip with its reason where there is none."""
    reason = "needs Playwright: make test-tools SUITE=browser"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    with sync_api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        executable = own if os.path.exists(own) else next(filter(None, map(shutil.which, SYSTEM)), None)
        if executable is None:
            pytest.skip(
                f"needs a browser, found none of Playwright and {', '.join(SYSTEM)}: make test-tools SUITE=browser"
            )
        # the sandbox of Chromium refuses to run as root, which is usual in containers
        started = playwright.chromium.launch(executable_path=executable, chromium_sandbox=os.geteuid() != 0)
        yield started
        started.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable]:
    """A function that opens an address in a new page, 1280 by 900.

    When the test ends it fails if a page wrote an error to its console, raised one, or requested something that is not
    on this machine.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    problems: list[str] = []

    def watch(page) -> None:
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if not request.url.startswith(LOCAL) else None)

    def open_address(address: str):
        page = context.new_page()
        watch(page)
        page.goto(address)
        return page

    yield open_address
    context.close()
    assert problems == []
