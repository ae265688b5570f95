"""A new store has the study of the first file that it accepts; refused files settle nothing."""

from dataclasses import replace

import pytest

from fedgram.exchange.format import fgm
from fedgram.exchange.store.study_store import Store
from support.stores import KEYS, STUDY, keyed, summary

OTHER = replace(STUDY, name="other", minimum_samples=50)
REFUSED = {
    "too few samples": (summary("north", study=OTHER), "at least 50"),
    "not signed": (summary("north", study=keyed()), "is not signed"),
    "someone else's key": (summary("north", study=keyed(), key=KEYS["west"]), "is signed with the key"),
    "a name that is not listed": (summary("west", study=keyed(), key=KEYS["west"]), "is not listed in study"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_first_file_settles_nothing(tmp_path, case):
    data, why = REFUSED[case]
    store = Store(tmp_path)
    [found] = store.join(data)
    assert found.outcome == "refused"
    assert why in found.why
    assert store.is_new
    assert Store(tmp_path).is_new
    first, second = store.join(data, summary("south"))
    assert (first.outcome, second.outcome) == ("refused", "joined")
    assert store.terms.study == STUDY


def test_a_new_store_cannot_take_a_study_that_is_not_in_the_file(tmp_path):
    moments = fgm.read(summary("north")).payload
    about = {"party": "north", "samples": moments.n, "columns": STUDY.sent}
    data = fgm.encode("summary", moments, study=STUDY.fingerprint, **about)
    [found] = Store(tmp_path).join(data)
    assert (found.outcome, "needs its study, give --study" in found.why) == ("refused", True)
    assert [each.outcome for each in Store(tmp_path, study=STUDY).join(data)] == ["joined"]
