"""The tables of a store's index."""

import sqlite3
from collections.abc import Iterator

SCHEMA = 2
# `gone` and `marks` know what has left: docs/guides/consortium.md says what that tells of whom.
_SCRIPT = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE contributions (
  digest TEXT PRIMARY KEY, party TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, samples INTEGER NOT NULL,
  counts TEXT NOT NULL, size INTEGER NOT NULL, signer TEXT NOT NULL, created TEXT NOT NULL, joined TEXT NOT NULL
);
CREATE TABLE leaves (
  digest TEXT PRIMARY KEY, party TEXT NOT NULL UNIQUE, content TEXT NOT NULL UNIQUE, samples INTEGER NOT NULL,
  created TEXT NOT NULL, contribution TEXT NOT NULL REFERENCES contributions (digest) ON DELETE CASCADE
);
CREATE TABLE gone (
  digest TEXT PRIMARY KEY, party TEXT NOT NULL, content TEXT NOT NULL, contribution TEXT NOT NULL, time TEXT NOT NULL
);
CREATE INDEX gone_contents ON gone (content);
CREATE TABLE marks (mark TEXT NOT NULL, leaf TEXT NOT NULL, PRIMARY KEY (mark, leaf)) WITHOUT ROWID;
CREATE TABLE names (party TEXT PRIMARY KEY, signer TEXT NOT NULL);
CREATE TABLE rounds (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, run TEXT NOT NULL, said BLOB);
CREATE TABLE answers (party TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE);
CREATE TABLE ledger (number INTEGER PRIMARY KEY, text TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER ledger_keeps_entries BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER ledger_keeps_texts BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
"""


def statements() -> Iterator[str]:
    """Yield the commands that make the tables, one by one: a script would end the transaction by itself."""
    statement = ""
    for line in _SCRIPT.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
