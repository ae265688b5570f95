"""Secure sums between parties, witnesses and a coordinator, honest and not."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedgram.core.errors import InvalidParameter, RefusedMessage
from fedgram.core.fixed_point import Fixed
from fedgram.secure.masks import masked, new_seed, sum_of_streams
from fedgram.secure.secure_sums import (
    APPROVAL,
    Coordinator,
    Request,
    Roster,
    SecureParty,
    Signed,
    Witness,
    _chain,
)
from fedgram.secure.signing_keys import PrivateKey
from fedgram.secure.witness_ledger import StoredLedger, WitnessLedger
from support.campaign import examples, size
from support.singled_out import singled_out

KEYS = [PrivateKey.new() for _ in range(24)]
BOSS, DIGEST, COUNT = KEYS[0], "0f" * 32, 5
NAMES = [f"p{k}" for k in range(12)]


class Study:
    """A secure study with all its keys, of which a test may play any side."""

    def __init__(self, parties=4, witnesses=2, needed=None, name="walks", minimum_parties=3):
        self.names = NAMES[:parties]
        self.party_keys = dict(zip(self.names, KEYS[6:], strict=False))
        self.witness_keys = KEYS[1 : witnesses + 1]
        public = {name: key.public for name, key in self.party_keys.items()}
        keys = tuple(key.public for key in self.witness_keys)
        self.roster = Roster(name, BOSS.public, public, keys, needed, minimum_parties)
        self.witnesses = [Witness(self.roster, key) for key in self.witness_keys]
        self.coordinator = Coordinator(self.roster, BOSS, self.witnesses)
        self.parties = {name: SecureParty(self.roster, name, key) for name, key in self.party_keys.items()}
        self.versions = dict.fromkeys(self.names, "1")

    def collected(self, names=None, coordinator=None, step="summarize", round=0):
        """Return the uploads of some parties to a new request."""
        found = (coordinator or self.coordinator).collect(step, round, digest=DIGEST, count=COUNT)
        for name in self.names if names is None else names:
            found.add(name, self.upload(name, found.request))
        return found

    def upload(self, name, request, rows="training"):
        return self.parties[name].upload(request, numbers_of(name), version=self.versions[name], rows=rows)

    def sum_of(self, names=None, **options):
        return self.coordinator.total(self.collected(names, **options))

    def coordinators(self, count):
        """Return coordinators of other runs with the same witnesses."""
        return [Coordinator(self.roster, BOSS, self.witnesses) for _ in range(count)]


def numbers_of(name):
    rng = np.random.default_rng(int(name[1:]))
    return Fixed.of(np.ldexp(rng.normal(size=COUNT), rng.integers(-40, 30, size=COUNT)), parties=12)


def plain_sum(names):
    found = [numbers_of(name) for name in names]
    return sum(found[1:], start=found[0])


@given(st.integers(3, 9), st.sampled_from([(1, 1), (2, 2), (3, 2), (3, 3), (4, 3), (5, 3), (5, 4)]), st.data())
@examples(25)
def test_the_sum_has_the_bits_of_the_plain_one(parties, counts, data):
    study = Study(parties, *counts)
    names = data.draw(st.permutations(study.names))[: data.draw(st.integers(3, parties))]
    assert study.sum_of(names) == plain_sum(names)
    # The same set may be asked for again: another step, another round.
    assert study.sum_of(names, step="gradient", round=3) == plain_sum(names)


@pytest.mark.parametrize(("witnesses", "needed"), [(3, 2), (5, 3), (5, 4)])
def test_any_witnesses_that_are_enough_give_the_sum_and_one_fewer_do_not(witnesses, needed):
    for answering in combinations(range(witnesses), needed):
        study = Study(4, witnesses, needed)
        some = [study.witnesses[place] for place in answering]
        coordinator = Coordinator(study.roster, BOSS, some)
        assert coordinator.total(study.collected(coordinator=coordinator)) == plain_sum(study.names)
        fewer = Coordinator(study.roster, BOSS, some[1:])
        with pytest.raises(RefusedMessage, match=f"witnesses: expected answers of {needed}"):
            fewer.total(study.collected(coordinator=fewer))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_one_witness_fewer_than_needed_lacks_a_stream(count):
    for needed in range(count // 2 + 1, count + 1):
        holders = Study(3, count, needed).roster.holders
        for group in combinations(range(count), needed):
            assert all(set(own) & set(group) for own in holders)
        for group in combinations(range(count), needed - 1):
            assert any(not set(own) & set(group) for own in holders)


# What the ledger keeps from being asked.
@pytest.mark.parametrize("another", ["run", "step", "round", "request"])
def test_all_and_then_all_but_one_is_refused_in_whatever_is_asked(another):
    study = Study(5)
    study.sum_of()
    coordinator = study.coordinators(1)[0] if another == "run" else study.coordinator
    options = {"step": {"step": "gradient"}, "round": {"round": 1}}.get(another, {})
    collected = study.collected(study.names[:-1], coordinator=coordinator, **options)
    with pytest.raises(RefusedMessage, match="at least 3 in each group that sums tell apart, got 1"):
        coordinator.total(collected)


def test_fewer_parties_than_the_study_requires_are_not_summed():
    study = Study(5)
    with pytest.raises(RefusedMessage, match="got 2"):
        study.sum_of(study.names[:2])


def test_a_party_with_other_data_is_refused_after_an_answer():
    study = Study(5)
    study.sum_of()
    study.versions["p1"] = "2"
    with pytest.raises(RefusedMessage, match="version of the training rows of 'p1'"):
        study.sum_of()


def test_sums_over_test_rows_are_judged_by_themselves():
    """Parties without test rows send nothing, since zeros hide no client; the others' sum shows no training rows."""
    study = Study(6)
    study.sum_of()

    def tested(names):
        found = study.coordinator.collect("evaluate", 0, digest=DIGEST, count=COUNT)
        for name in names:
            found.add(name, study.upload(name, found.request, rows="test"))
        return study.coordinator.total(found)

    assert tested(study.names[1:]) == plain_sum(study.names[1:])
    with pytest.raises(RefusedMessage, match="got 1"):
        tested(study.names[2:])
    mixed = study.coordinator.collect("evaluate", 0, digest=DIGEST, count=COUNT)
    for name in study.names:
        mixed.add(name, study.upload(name, mixed.request, rows="test" if name == "p0" else "training"))
    with pytest.raises(RefusedMessage, match="got both"):
        study.coordinator.total(mixed)


def test_a_restarted_witness_remembers(tmp_path):
    study, path = Study(5, 1), tmp_path / "w.db"
    ledger = StoredLedger.begin(path, study.roster.identity, 3)
    coordinator = Coordinator(study.roster, BOSS, [Witness(study.roster, study.witness_keys[0], ledger)])
    assert coordinator.total(study.collected(coordinator=coordinator)) == plain_sum(study.names)
    ledger = StoredLedger(path, study.roster.identity)
    coordinator = Coordinator(study.roster, BOSS, [Witness(study.roster, study.witness_keys[0], ledger)])
    with pytest.raises(RefusedMessage, match="got 1"):
        coordinator.total(study.collected(study.names[1:], coordinator=coordinator))


# Seeds and uploads in the wrong place.
def changed(signed, key, **fields):
    """Return a header with other fields, signed by a party's key."""
    header = json.loads(signed.header)
    header["request"] |= {name: fields.pop(name) for name in list(fields) if name in header["request"]}
    text = json.dumps(header | fields, sort_keys=True, separators=(",", ":")).encode()
    return Signed(text, key.sign("upload", text))


@pytest.mark.parametrize(
    "fields",
    [
        {"run": "another"},
        {"number": 7},
        {"step": "gradient"},
        {"round": 4},
        {"digest": "0e" * 32},
        {"count": COUNT + 1},
        {"rows": "test"},
        {"version": "2"},
        {"upload": "0d" * 32},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_seed_opens_in_its_own_place_alone(fields):
    """Even a party's own signature does not move its seeds, which are bound to what they were made for."""
    study = Study()
    headers = study.collected().headers
    moved = [changed(headers[name], key, **fields) for name, key in study.party_keys.items()]
    with pytest.raises(RefusedMessage, match="does not open"):
        study.witnesses[0].answer(moved)
    # A header that is changed back stays the same, so that the refusal above is due to the field.
    same = [changed(headers[name], key) for name, key in study.party_keys.items()]
    assert study.witnesses[0].answer(same).streams


def test_a_seed_does_not_open_for_another_party():
    study = Study()
    headers = study.collected().headers
    stolen = changed(headers["p0"], study.party_keys["p1"], party="p1")
    with pytest.raises(RefusedMessage, match="does not open"):
        study.witnesses[0].answer([headers["p0"], stolen, headers["p2"]])


def test_a_seed_does_not_open_for_another_witness_or_stream():
    study = Study(witnesses=3, needed=2)
    headers = study.collected().headers
    for order in ([1, 0, 2], [2, 1, 0]):
        swapped = []
        for name, signed in headers.items():
            seeds = json.loads(signed.header)["seeds"]
            swapped.append(changed(signed, study.party_keys[name], seeds=[seeds[place] for place in order]))
        with pytest.raises(RefusedMessage, match="does not open"):
            study.witnesses[0].answer(swapped)


def test_a_seed_does_not_open_in_another_study():
    study, other = Study(), Study(name="runs")
    headers = study.collected().headers
    with pytest.raises(RefusedMessage, match="sender knows other keys or thresholds"):
        other.witnesses[0].answer(list(headers.values()))
    moved = [changed(headers[name], key, identity=other.roster.identity) for name, key in study.party_keys.items()]
    with pytest.raises(RefusedMessage, match="does not open"):
        other.witnesses[0].answer(moved)


def test_a_false_witness_key_changes_the_identity_of_the_study():
    study = Study()
    false = replace(study.roster, witnesses=(KEYS[-1].public, study.roster.witnesses[1]))
    study.parties["p1"] = SecureParty(false, "p1", study.party_keys["p1"])
    with pytest.raises(RefusedMessage, match="compare the fingerprints"):
        study.collected()
    for other in (replace(study.roster, minimum_parties=4), replace(study.roster, study="runs")):
        assert other.identity != study.roster.identity
    more = replace(study.roster, parties={**study.roster.parties, "late": KEYS[-1].public})
    assert more.identity == study.roster.identity


# Uploads and answers that were changed.
def test_altered_headers_are_refused():
    study = Study()
    headers = list(study.collected().headers.values())
    signed = headers[0]
    for place in (10, len(signed.header) // 2):
        text = bytearray(signed.header)
        text[place] ^= 1
        with pytest.raises(RefusedMessage):
            study.witnesses[0].answer([Signed(bytes(text), signed.signature), *headers[1:]])
    with pytest.raises(RefusedMessage, match="signature does not fit"):
        study.witnesses[0].answer([Signed(signed.header, bytes(64)), *headers[1:]])
    stranger = changed(signed, KEYS[-1], party="stranger")
    with pytest.raises(RefusedMessage, match="party 'stranger': expected one of the study's"):
        study.witnesses[0].answer([stranger, *headers[1:]])


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b"null", b"{", b"\xff", b'{"party":1}', b"[" * 5000])
def test_made_up_headers_are_refused(header):
    study = Study()
    with pytest.raises(RefusedMessage, match="header of an upload"):
        study.witnesses[0].answer([Signed(header, b"")])


def test_no_headers_and_a_party_twice_are_refused():
    study = Study()
    headers = list(study.collected().headers.values())
    with pytest.raises(RefusedMessage, match="several, or no party"):
        study.witnesses[0].answer([])
    with pytest.raises(RefusedMessage, match="expected each once"):
        study.witnesses[0].answer([*headers, headers[0]])


def test_parties_that_were_asked_for_different_things_are_not_summed():
    study = Study()
    one = study.coordinator.collect("gradient", 1, digest=DIGEST, count=COUNT)
    other = Request(one.request.run, one.request.number, "gradient", 1, "0a" * 32, COUNT)
    with pytest.raises(RefusedMessage, match="does not open"):
        one.add("p0", study.upload("p0", other))
    headers = study.collected(["p1", "p2"]).headers | study.collected(["p3"]).headers
    with pytest.raises(RefusedMessage, match="expected the same of all parties"):
        study.witnesses[0].answer(list(headers.values()))


def test_uploads_of_another_party_a_second_one_and_altered_ones_are_refused():
    study = Study()
    collected = study.coordinator.collect("summarize", 0, digest=DIGEST, count=COUNT)
    upload = study.upload("p0", collected.request)
    with pytest.raises(RefusedMessage, match="expected its answer to this request"):
        collected.add("p1", upload)
    for place in (3, 40, len(upload) - 20):
        broken = bytearray(upload)
        broken[place] ^= 1
        with pytest.raises(RefusedMessage):
            collected.add("p0", bytes(broken))
    collected.add("p0", upload)
    with pytest.raises(RefusedMessage, match="got a second"):
        collected.add("p0", upload)


def test_a_party_answers_a_request_once_and_none_that_is_older():
    study = Study()
    first, second = (study.coordinator.collect("summarize", 0, digest=DIGEST, count=COUNT) for _ in range(2))
    study.upload("p0", second.request)
    for collected in (first, second):
        with pytest.raises(RefusedMessage, match="number of the request: expected more than 1"):
            study.upload("p0", collected.request)
    with pytest.raises(RefusedMessage, match="count of the request"):
        study.parties["p1"].upload(first.request, Fixed.zeros(COUNT + 1), version="1")


class Altering(Witness):
    """A witness that changes its answer after signing it, or answers for other uploads."""

    alters = staticmethod(lambda answer: answer)

    def answer(self, *arguments):
        return self.alters(super().answer(*arguments))


@pytest.mark.parametrize(
    ("alters", "why"),
    [
        (lambda answer: answer._replace(streams={0: Fixed.zeros(COUNT)}), "this set of uploads"),
        (lambda answer: answer._replace(signed=Signed(answer.signed.header, bytes(64))), "signature does not fit"),
        (lambda answer: answer._replace(streams={}), "this set of uploads"),
    ],
)
def test_altered_answers_are_refused(alters, why):
    study = Study()
    altering = Altering(study.roster, study.witness_keys[0])
    altering.alters = alters
    coordinator = Coordinator(study.roster, BOSS, [altering, study.witnesses[1]])
    with pytest.raises(RefusedMessage, match=why):
        coordinator.total(study.collected(coordinator=coordinator))


def test_an_answer_to_other_uploads_of_the_same_parties_is_refused():
    study = Study()
    earlier = study.collected()
    answers = [witness.answer(list(earlier.headers.values())) for witness in study.witnesses]
    replaying = [Altering(study.roster, key) for key in study.witness_keys]
    for witness, answer in zip(replaying, answers, strict=True):
        witness.alters = lambda _, answer=answer: answer
    coordinator = Coordinator(study.roster, BOSS, replaying)
    with pytest.raises(RefusedMessage, match="this set of uploads"):
        coordinator.total(study.collected(coordinator=coordinator))


def test_holders_of_one_stream_are_compared():
    """A party that seals different seeds of one stream to two witnesses is noticed, though not by name."""
    study = Study(witnesses=3, needed=2)

    class Lying(Witness):
        def _opened(self, stream, headers):
            return [new_seed() for _ in headers]

    lying = Lying(study.roster, study.witness_keys[2])
    coordinator = Coordinator(study.roster, BOSS, [*study.witnesses[:2], lying])
    with pytest.raises(RefusedMessage, match="the same sum of all its holders, got different ones of witnesses"):
        coordinator.total(study.collected(coordinator=coordinator))


# Plotting.
class Careless:
    """A ledger that admits everything, as that of a witness who plots with the coordinator."""

    def admit(self, members):
        pass

    def follow(self, chain):
        pass


def taken(study, witnesses, names):
    """Return the sum that a coordinator gets of some of the witnesses in a run of its own."""
    coordinator = Coordinator(study.roster, BOSS, witnesses)
    return coordinator.total(study.collected(names, coordinator=coordinator))


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 3), (3, 2), (4, 3), (5, 3), (5, 4)])
@pytest.mark.parametrize("more", [0, 1])
def test_the_stated_number_of_plotters_learns_nothing_and_one_more_does(counts, more):
    """The coordinator asks one part of the honest witnesses for the sum of all, the other part for all but one."""
    study = Study(5, *counts)
    plotters = study.roster.plotters + more
    plotting = [Witness(study.roster, key, Careless()) for key in study.witness_keys[:plotters]]
    honest = study.witnesses[plotters:]
    outcomes = []
    for cut in range(len(honest) + 1):
        for witness in honest:
            witness._ledger = WitnessLedger(3)
        try:
            all_of_them = taken(study, [*plotting, *honest[:cut]], study.names)
            others = taken(study, [*plotting, *honest[cut:]], study.names[1:])
            outcomes.append(all_of_them - others == numbers_of(study.names[0]))
        except RefusedMessage:
            outcomes.append(False)
    assert any(outcomes) == bool(more)


def test_ledgers_of_their_own_would_not_do_where_not_all_witnesses_must_answer():
    """Three sets of which any two are harmless: no witness sees all three, and together they show the party p6.

    Two groups of witnesses always share an honest one; three groups need not. Hence the chain that all of them sign.
    """
    study = Study(7, 3, 2)
    sets = [study.names, study.names[:3], study.names[3:6]]
    asked = [(0, 1), (1, 2), (0, 2)]
    total = []
    ledgers = [WitnessLedger(3) for _ in range(3)]

    class Alone:
        """A ledger as witnesses would have it without a chain."""

        def __init__(self, ledger):
            self.admit, self.last = ledger.admit, None

        def follow(self, chain):
            self.admit(chain[-1])

    for names, places in zip(sets, asked, strict=True):
        witnesses = [Witness(study.roster, study.witness_keys[place], Alone(ledgers[place])) for place in places]
        total.append(taken(study, witnesses, names))
    assert total[0] - total[1] - total[2] == numbers_of("p6")

    honest = Study(7, 3, 2)
    assert taken(honest, honest.witnesses[:2], sets[0]) == plain_sum(sets[0])
    for names, places in zip(sets[1:], asked[1:], strict=True):
        with pytest.raises(RefusedMessage, match="expected one that continues"):
            taken(honest, [honest.witnesses[place] for place in places], names)


# Sets of which most pairs are harmless, and the first three together are not.
ATTEMPTS = 15
HARMLESS = np.array([[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize(("counts", "plotting"), [((3, 2), 0), ((5, 4), 2), ((5, 3), 0), ((4, 3), 1), ((3, 3), 2)])
def test_no_sums_that_witnesses_let_through_show_fewer_parties(counts, plotting):
    """A coordinator asks random witnesses for random sets in random chains, with as many plotters as stated."""
    rng, let_through = np.random.default_rng(counts), 0
    for _ in range(size(5)):
        study = Study(8, *counts)
        assert study.roster.plotters == plotting
        for witness in study.witnesses[:plotting]:
            witness._ledger = Careless()
        chains, rows = [[]], []
        for _ in range(ATTEMPTS):
            row = HARMLESS[rng.integers(len(HARMLESS))]
            names = [name for name, chosen in zip(study.names, row, strict=True) if chosen]
            honest = rng.permutation(study.witnesses[plotting:])[: counts[1] - plotting]
            coordinator = Coordinator(study.roster, BOSS, [*study.witnesses[:plotting], *honest])
            chain = chains[rng.integers(len(chains))]
            coordinator._chain = chain[: rng.integers(len(chain) + 1)]
            try:
                found = coordinator.total(study.collected(names, coordinator=coordinator))
            except RefusedMessage:
                continue
            assert found == plain_sum(names)
            chains.append(coordinator._chain)
            rows.append(row)
        let_through += len(rows)
        padded = np.zeros((1, ATTEMPTS, 8))
        padded[0, : len(rows)] = rows or 0
        assert not singled_out(padded, 3).any()
    assert let_through > 3


def test_approvals_must_be_of_enough_witnesses_and_of_this_chain():
    study = Study(6, 3, 2)
    collected = study.collected()
    headers, chain = list(collected.headers.values()), [collected.members]
    approvals = {place: study.witnesses[place].approve(chain) for place in (0, 1)}
    assert study.witnesses[2].answer(headers, chain, approvals).streams
    with pytest.raises(RefusedMessage, match="expected 2 witnesses', got 1"):
        study.witnesses[2].answer(headers, chain, {0: approvals[0]})
    with pytest.raises(RefusedMessage, match="signature does not fit"):
        study.witnesses[2].answer(headers, chain, {0: approvals[0], 2: approvals[0]})
    with pytest.raises(RefusedMessage, match="got one of witness 5"):
        study.witnesses[2].answer(headers, chain, {0: approvals[0], 5: approvals[1]})
    with pytest.raises(RefusedMessage, match="one of the approved chain"):
        study.witnesses[2].answer(headers[:5], chain, approvals)
    other = [*chain, frozenset(sorted(collected.members)[:3])]
    own = {place: study.witness_keys[place].sign(APPROVAL, _chain(study.roster, other)) for place in (0,)}
    with pytest.raises(RefusedMessage, match="signature does not fit"):
        study.witnesses[2].answer(headers[:3], other, approvals | own)


def test_the_masks_of_one_honest_witness_leave_noise():
    """What a coordinator and all witnesses but one know of an upload."""
    count = 100_000
    numbers = Fixed.of(np.random.default_rng(0).normal(size=count))
    seeds = [new_seed() for _ in range(3)]
    seen = masked(numbers, seeds) - sum_of_streams(seeds[:2], count)
    counts = np.bincount(np.concatenate([seen.high.view(np.uint8), seen.low.view(np.uint8)]), minlength=256)
    assert chi2.sf(float(((counts - counts.mean()) ** 2 / counts.mean()).sum()), 255) > 1e-9


# Numbers with which nothing would be secure.
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"witnesses": 3, "needed": 1}, "needed: expected more than half of the 3 witnesses"),
        ({"witnesses": 4, "needed": 2}, "needed: expected more than half"),
        ({"witnesses": 2, "needed": 3}, "needed: expected more than half"),
        ({"minimum_parties": 2}, "minimum_parties: expected at least 3"),
        ({"parties": 3, "minimum_parties": 4}, "parties: expected at least 4, got 3"),
        ({"witnesses": 0}, "witnesses: expected 1 to 5, got 0"),
    ],
)
def test_numbers_with_which_sums_would_not_be_secure_are_refused(options, why):
    with pytest.raises(InvalidParameter, match=why):
        Study(**options)


def test_a_key_has_one_owner():
    study = Study()
    with pytest.raises(InvalidParameter, match="the same twice"):
        replace(study.roster, witnesses=(study.roster.coordinator,))
    with pytest.raises(InvalidParameter, match="expected one of the study's witnesses"):
        Witness(study.roster, KEYS[-1])
