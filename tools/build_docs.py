"""Builds the documentation into build/site and checks the result: `make docs`.

Zensical checks links and anchors in the Markdown files (`--strict`). Here the HTML is checked, the API reference
included: every link and anchor leads somewhere, and no page loads anything from the network.
"""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
THEIR_WORKER, OUR_WORKER = "https://unpkg.com/iframe-worker/shim", "javascripts/worker.js"
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}


class Page(HTMLParser):
    """The links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one element's links and names."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in LOADS and LOADS[tag] in values and values.get("rel") != "canonical":
            self.loads.append(values[LOADS[tag]])


def main() -> None:
    """Build the site and end with an error if a link or page is broken."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        sys.exit("the documentation cannot be built: see above")
    use_our_worker()
    # 404.html is for a server at the root of its domain.
    pages = {path: Page(path) for path in SITE.rglob("*.html") if path.name != "404.html"}
    problems = [problem for page in pages.values() for problem in problems_of(page, pages)]
    problems += [
        f"{path.relative_to(SITE)}: loads fonts or images from the network"
        for path in SITE.rglob("*.css")
        if "url(http" in path.read_text(encoding="utf-8") or "@import" in path.read_text(encoding="utf-8")
    ]
    if problems:
        sys.exit("\n".join(sorted(problems)))
    print(
        f"{len(pages)} pages in {SITE.relative_to(ROOT)}: all links lead somewhere, nothing is loaded from the network"
    )


def use_our_worker() -> None:
    """Replace the one script that Zensical's pages would load from the network when they are opened as files."""
    for path in SITE.rglob("*.html"):
        ours = Path(os.path.relpath(SITE / OUR_WORKER, path.parent)).as_posix()
        page = path.read_text(encoding="utf-8")
        path.write_text(page.replace(THEIR_WORKER, ours), encoding="utf-8")


def problems_of(page: Page, pages: dict[Path, Page]) -> list[str]:
    """Return the problems of a page's links."""
    here = page.path.relative_to(SITE)
    found = [f"{here}: loads {url} from the network" for url in page.loads if urlsplit(url).netloc]
    for url in [*page.links, *page.loads]:
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            found.append(f"{here}: {url} leads nowhere")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            found.append(f"{here}: {url} names an anchor that is not there")
    return found


if __name__ == "__main__":
    main()
