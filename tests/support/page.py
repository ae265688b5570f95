"""Helpers for tests of the page: reading, clicking and parsing it."""

import json
import re
import time


def texts(chrome, selector):
    return [" ".join(node.text.split()) for node in chrome.find_elements("css selector", selector)]


def methods(chrome):
    return [row.get_attribute("data-method") for row in chrome.find_elements("css selector", "table.main tbody tr")]


def click(chrome, selector):
    node = chrome.find_element("css selector", selector)
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    node.click()


def alternatives(chrome):
    return [node.get_attribute("aria-label") for node in chrome.find_elements("css selector", "svg.chart, canvas")]


_NODES = """
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
  let nodes = 1;
  while (walker.nextNode()) nodes += 1;
  return nodes;
"""


def cost_of_opening(chrome, page):
    """Open a page and return its costs, by Chromium's names; seconds are CPU time of the main thread.

    Chromium's own number of nodes also counts those of earlier pages that it has not yet thrown away.
    """
    chrome.get("about:blank")
    # Time on the clock would grow with what else the machine has to do.
    chrome.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    chrome.get(page.as_uri())
    found = chrome.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    chrome.execute_cdp_cmd("Performance.disable", {})
    return {entry["name"]: entry["value"] for entry in found} | {"Nodes": chrome.execute_script(_NODES)}


def taken_apart(text):
    """Return the text before a page's data, the data, and the text after."""
    start = text.index('id="data">') + len('id="data">')
    end = text.index("</script>", start)
    return text[:start], json.loads(text[start:end]), text[end:]


# The WCAG's rule for every text that is seen: its colour over all the backgrounds behind it, opacity included.
_CONTRASTS = """
  const dot = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }),
    pen = dot.getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const chain = (node) => (node ? [...chain(node.parentElement), node] : []);
  const behind = (node) => chain(node).map((n) => rgba(getComputedStyle(n).backgroundColor))
    .reduce((below, colour) => over(colour, below), [255, 255, 255]);
  const ratio = (node, style) => {
    const back = behind(node), drawn = rgba(node instanceof SVGElement ? style.fill : style.color);
    drawn[3] *= chain(node.parentElement).reduce((seen, n) => seen * getComputedStyle(n).opacity, style.opacity);
    const [a, b] = [over(drawn, back), back].map(luminance);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), node = walker.currentNode.parentElement;
    if (!text || !node.checkVisibility({ visibilityProperty: true }) || node.closest("script, style")) continue;
    found.push([ratio(node, getComputedStyle(node)), text]);
  }
  for (const node of document.querySelectorAll("thead button")) {
    const style = getComputedStyle(node, "::after");
    if (style.content !== "none") found.push([ratio(node, style), style.content]);
  }
  const root = getComputedStyle(document.documentElement);
  const [ink, card] = ["--soft", "--card"].map((name) => luminance(rgba(root.getPropertyValue(name)).slice(0, 3)));
  const painted = (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05);
  if (root.getPropertyValue("--card")) found.push([painted, "names in matrices, which are painted"]);
  return found;
"""


def contrasts(chrome):
    """Return the contrast of every visible text with its background, and the text."""
    return [(ratio, text) for ratio, text in chrome.execute_script(_CONTRASTS)]


def eventually(read, accept, *, seconds=20):
    """Return the first accepted reading, or the last reading: history events come late."""
    end = time.monotonic() + seconds
    while not accept(found := read()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def downloads(chrome, folder, *, seconds=60):
    """Press every download that is seen, one after the other, and return the files by name."""
    chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def finished():
        whole = [path for path in folder.iterdir() if not path.name.endswith(".crdownload") and path.stat().st_size]
        return [path for path in whole if not re.search(r" \(\d+\)\.", path.name)]  # requested twice

    for node in chrome.find_elements("css selector", ".save"):
        if not node.is_displayed():
            continue
        before, end = len(finished()), time.monotonic() + seconds
        chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
        node.click()
        again = time.monotonic() + 10
        # A browser drops a download that is followed by the next one at once; a busy one drops others, too.
        while len(finished()) == before:
            assert time.monotonic() < end, f"nothing came of: {node.get_attribute('aria-label')}"
            if time.monotonic() > again:
                node.click()
                again += 10
            time.sleep(0.02)
    return {path.name: path.read_bytes() for path in finished()}
