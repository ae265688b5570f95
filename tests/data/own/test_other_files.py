"""Files that are not tables, or not in UTF-8, are named as such, with what to do."""

import base64
import gzip
import io
import zipfile

import pytest

from fedgram.core.errors import InvalidData, RefusedMessage
from fedgram.data.own.files import open_path
from fedgram.exchange.format import fgm
from fedgram.studies import open_table
from fedgram.studies.loading import table_files


@pytest.mark.parametrize("name", ["a.xlsx", "a.XLS", "a.ods"])
def test_spreadsheets_are_named_with_the_remedy(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"anything")
    for read in (open_table, open_path, lambda each: table_files(str(each))):
        with pytest.raises(InvalidData, match=r"is a spreadsheet, which is not read: save it there as 'CSV UTF-8'"):
            read(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04rest", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
def test_a_spreadsheet_that_is_called_a_csv_is_named_too(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(InvalidData, match="is a spreadsheet"):
        open_table(tmp_path / "a.csv")


def test_text_in_another_encoding_has_the_words_of_excel(tmp_path):
    (tmp_path / "a.csv").write_bytes("größe,ill\n1,no\n".encode("cp1252"))
    with pytest.raises(InvalidData, match=r"not UTF-8 text .*: save it as UTF-8 \(in Excel: CSV UTF-8\)"):
        open_table(tmp_path / "a.csv")


def zipped():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("north.fgm", b"x" * 100)
    return content.getvalue()


CONTENT = bytes(range(256)) * 8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (zipped(), "it is an archive .zip or the like.; unpack it first"),
        (gzip.compress(CONTENT), "it is an archive"),
        (base64.encodebytes(CONTENT), "it looks like base64"),
        (base64.b64encode(CONTENT), "it looks like base64"),
        (base64.b64encode(CONTENT[:25]), "it looks like base64"),
        (b"From: north\nSubject: our file\n\nhello there", "it is not a file that fedgram exchanges$"),
        (b"[study]\nname = 'a study'\noutcome = 'b'\n", "it is not a file that fedgram exchanges$"),
    ],
    # Archives hold the time: each test process would give the test another name.
    ids=["empty", "zip", "gzip", "base64 in lines", "base64", "short base64", "a mail", "a study"],
)
def test_what_is_given_as_a_message_says_what_it_is(tmp_path, content, words):
    (tmp_path / "north.fgm").write_bytes(content)
    for source in (tmp_path / "north.fgm", content):
        with pytest.raises(RefusedMessage, match=words):
            fgm.read(source)
