"""Texts of any origin as parts of files that other programs read: cells of CSV files, and LaTeX."""

import re
import unicodedata

from fedgram.core.terminal import visible

# The number that every table is read by: a sign, ASCII digits with a point, an exponent; or an infinity.
NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity)", re.IGNORECASE)
BLANKS = " \t\n\r\f\v"
_FORMULA = re.compile(r"'*(?:\s*[=+\-@＝＋－＠].|[\t\r\n])", re.DOTALL)  # a lone sign is not one


def guarded(text: str) -> str:
    """Return a text as a cell of a CSV file that fedgram writes: with an apostrophe in front of what may be a formula.

    A spreadsheet would compute a cell that begins with =, +, - or @, and a formula can start programs. Numbers stay as
    they are. `unguarded` takes the apostrophe away again.

    >>> guarded("=1+1"), guarded("-1.5"), guarded("-"), guarded("'=1"), guarded("W-7")
    ("'=1+1", '-1.5', '-', "''=1", 'W-7')
    """
    return f"'{text}" if _FORMULA.match(text) and not NUMBER.fullmatch(text.strip(BLANKS)) else text


def unguarded(text: str) -> str:
    """Return the text before `guarded` made a cell of it.

    >>> [unguarded(guarded(text)) for text in ("=1+1", "-1.5", "'=1", "'n")]
    ['=1+1', '-1.5', "'=1", "'n"]
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


# Those that LaTeX has commands for; the others look like Latin letters.
_GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"


def _greek_name(letter: str) -> str:
    name = unicodedata.name(letter).split()[-1].lower().replace("lamda", "lambda")
    return name.capitalize() if letter.isupper() else name


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "×": r"$\times$",
    "†": r"$\dagger$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "–": "--",
    **{letter: rf"$\{_greek_name(letter)}$" for letter in _GREEK},
    **{character: "\\" + character for character in "&%$#_{}"},
}


def latex(text: str) -> str:
    r"""Return a text as LaTeX, on one line.

    >>> print(latex("β = 50 % of age_max"))
    $\beta$ = 50 \% of age\_max
    """
    return "".join(_LATEX.get(character, character) for character in visible(" ".join(text.split())))
