"""A real Chromium without a screen, for tests that look at a page as a reader does."""

import os
import shutil
from contextlib import contextmanager

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


def find(names):
    return next((path for name in names if (path := shutil.which(name))), None)


@contextmanager
def browser(profile, *, width=1280, height=900):
    """Yield a selenium driver of a browser found on PATH; without one, skip, or fail where FEDGRAM_BROWSER=required."""
    program, driver = find(BROWSERS), find(("chromedriver",))
    if not program or not driver:
        message = "no Chromium with chromedriver on PATH (make browser installs them)"
        (pytest.fail if os.environ.get("FEDGRAM_BROWSER") == "required" else pytest.skip)(message)
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def console_errors(chrome):
    return [entry["message"] for entry in chrome.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def resize(chrome, width, height, *, phone=False):
    """Set the size of the page itself; windows cannot be narrower than some 500 pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(chrome, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
