"""A Markdown extension for the documentation: formulas and doctests.

Formulas between dollars become MathML, which browsers draw without scripts or network: `$x^2$` stands in a line,
`$$x^2$$` on its own. Examples that begin with `>>>` become blocks of code; in docstrings they stand without fences.
"""

from re import Match

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

DISPLAYED = r"\$\$(.+?)\$\$"
INLINE = r"(?<![\\$])\$(?![\s$])([^$\n]+?)(?<!\s)\$(?!\d)"  # "$5 and $6" are prices
# Above the escapes (180), so that backslashes reach LaTeX, and below code between backticks (190).
INLINE_PRIORITY = 185
FENCES_PRIORITY = 25  # of superfences, which must see the fences that are added here


class Formula(InlineProcessor):
    """Replaces LaTeX by MathML."""

    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        """Return the formula as MathML, protected from all further patterns."""
        return self.md.htmlStash.store(convert(m.group(1), display=self.display)), m.start(0), m.end(0)


class Doctests(Preprocessor):
    """Puts fences around examples, from `>>>` to the next empty line."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines with fences."""
        out: list[str] = []
        fenced = example = False
        for line in [*lines, ""]:
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if not fenced and not example and line.startswith(">>>"):
                out.append("```pycon")
                example = True
            elif example and not line.strip():
                out.append("```")
                example = False
            out.append(line)
        return out


class Docs(Extension):
    """Adds formulas and examples."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the patterns and the preprocessor."""
        md.inlinePatterns.register(Formula(DISPLAYED, md, "block"), "displayed formula", INLINE_PRIORITY + 1)
        md.inlinePatterns.register(Formula(INLINE, md, "inline"), "inline formula", INLINE_PRIORITY)
        md.preprocessors.register(Doctests(md), "doctests", FENCES_PRIORITY + 1)


def makeExtension(**options: object) -> Docs:  # noqa: N802
    """Return the extension; Markdown looks for this name."""
    return Docs(**options)
