"""Public keys enter a study file once they have been collected; all else in the file, comments too, stays as it is."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace

from fedgram.core.errors import InvalidData, UnknownName
from fedgram.studies.study import Study

_SETTING = re.compile(r"\s*parties\s*=")
_STUDY = re.compile(r"^[ \t]*\[[ \t]*study[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)
_TABLE = re.compile(r"\s*\[\s*(study\s*\.\s*)?parties\s*\]\s*(#.*)?")


def with_keys(text: str, keys: Mapping[str, str], *, where: str = "study") -> str:
    """Return a study file's text with these parties' keys in `[parties]`, at its end.

    A name that the study does not list is refused, unless it lists none; and so is another key than the one that is
    there: what was signed with that would no longer count.
    """
    study = Study.parse(text, where=where)
    parties = dict(study.parties)
    for name, key in keys.items():
        if study.parties and name not in study.parties:
            raise UnknownName(f"party of study {study.name!r}", name, study.parties)
        if parties.get(name) not in (None, "", key):
            raise InvalidData(
                f"{where} has another key of {name!r} already: take that line out first, if the new one is right"
            )
        parties[name] = key
    lines = [f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(key)}" for name, key in parties.items()]
    table = "\n".join(["[parties]", *lines])
    made = f"{_without_parties(text).rstrip()}\n\n{table}\n"
    if Study.parse(made, where=where) != replace(study, parties=parties):
        raise InvalidData(f"{where} is written in a way that cannot be edited here: put this at its end:\n{table}")
    return made


def with_coordinator(text: str, key: str, *, where: str = "study") -> str:
    """Return a study file's text with the coordinator's key in `[study]`; another one that is there is refused."""
    study = Study.parse(text, where=where)
    if study.coordinator not in ("", key):
        raise InvalidData(f"{where} names another coordinator already: take that line out, if the new one is right")
    if study.coordinator:
        return text
    setting = f"coordinator = {json.dumps(key)}"
    made = _STUDY.sub(lambda found: f"{found[0]}\n{setting}", text, count=1)
    if Study.parse(made, where=where) != replace(study, coordinator=key):
        raise InvalidData(f"{where} is written in a way that cannot be edited here: put this into [study]: {setting}")
    return made


def _without_parties(text: str) -> str:
    """Return the text without what it says of parties: a setting of one or more lines, or a table."""
    lines = text.splitlines(keepends=True)
    for start, line in enumerate(lines):
        if _SETTING.match(line):
            ends = (end for end in range(start + 1, len(lines) + 1) if _is_toml("".join(lines[start:end])))
            return "".join(lines[:start] + lines[next(ends, start + 1) :])
        if _TABLE.fullmatch(line.rstrip("\n")):
            ends = (end for end in range(start + 1, len(lines)) if lines[end].lstrip().startswith("["))
            end = next(ends, len(lines))
            comments = [line for line in lines[start + 1 : end] if line.lstrip()[:1] in ("", "#")]
            return "".join(lines[:start] + comments + lines[end:])
    return text


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
