"""Flower apps that carry a study: `fedgram flower new --study`, and the server's use of it."""

import pytest

from fedgram.core.errors import InvalidData, InvalidParameter
from fedgram.engines.flower.config import App
from fedgram.engines.flower.project import write_app
from support.patients import RUN, STUDY, TEXT, config_of


@pytest.mark.parametrize("text", [f"# {{x}}\n{TEXT}", f"# don't '''quote''' me\n{TEXT}", TEXT.replace("\n", "\r\n")])
def test_an_app_carries_the_study_byte_for_byte(tmp_path, text):
    (tmp_path / "study.toml").write_bytes(text.encode())
    config = config_of(write_app(tmp_path / "app", None, {}, study=tmp_path / "study.toml"))
    assert config["study"] == text
    assert config["study-fingerprint"] == STUDY.fingerprint
    assert config["method"] == config["settings-of"] == "fedgram"


def test_an_app_of_a_bad_study_is_not_written(tmp_path):
    (tmp_path / "study.toml").write_text(TEXT.replace('"number"', '"nummer"'))
    with pytest.raises(InvalidData, match="did you mean 'number'"):
        write_app(tmp_path / "app", None, {}, study=tmp_path / "study.toml")
    assert not (tmp_path / "app").exists()


def test_the_server_refuses_a_study_with_another_fingerprint_than_the_app_says():
    with pytest.raises(InvalidParameter, match="study-fingerprint: expected 64 hexadecimal digits, got 'abc'"):
        App.read({"study": TEXT, "study-fingerprint": "abc"})
    with pytest.raises(
        InvalidParameter, match="study-fingerprint is of study b4hq-.*, and study 'stroke' .* is expected"
    ):
        _ = App.read({"study": TEXT, "study-fingerprint": "0f" * 32}).agreed
    with pytest.raises(InvalidParameter, match="leave both empty"):
        App.read(RUN | {"classes": "2"})
    assert App.read(RUN).client_names() == ["north", "south"]
    assert App.read(RUN).class_names() == ("ill", "well")
    assert App.read(RUN | {"clients": "south"}).client_names() == ["south"]
