"""Feature shift: each client's own change of its images, drawn from the seed and its name."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedgram as fg
from fedgram.cli import app
from fedgram.core.errors import InvalidParameter, UnknownName
from fedgram.core.randomness import generator
from fedgram.data import load_dataset
from fedgram.data.shift import Camera, Rotation, read_shift, shifted
from fedgram.experiments import Scenario
from fedgram.features import featurize, load_features
from support.command import run

NEUTRAL = {"exposure": 1.0, "cast": (1.0, 1.0, 1.0), "gamma": 1.0, "contrast": 1.0, "blur": 0.0}
HOWS = ["camera:0.7", "rotation:90"]


@pytest.fixture(scope="module")
def photographs():
    return load_dataset("cifar10").sample(300, pool=True)


@pytest.fixture(scope="module")
def grey():
    return load_dataset("mnist").sample(300, pool=True)


def see(data, how, owners, seed=0):
    """Return the images of clients with these names, one part each, of equal sizes."""
    return shifted(data, np.array_split(np.arange(len(data)), len(owners)), owners, how, seed=seed)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", ["photographs", "grey"])
def test_each_client_has_a_change_of_its_own(how, kind, request):
    data = request.getfixturevalue(kind)
    # All clients have the same images, so that only the changes can differ.
    same = fg.Dataset("same", np.concatenate([data.x[:30]] * 3), np.tile(data.y[:30], 3), data.classes, "same")
    seen = see(same, how, ["a", "b", "a twin"]).x[:].reshape(3, 30, -1)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(seen[i], seen[j])
    assert seen.dtype == np.uint8
    again = see(same, how, ["a", "b", "a twin"]).x[:].reshape(3, 30, -1)
    assert np.array_equal(seen, again)
    other = see(same, how, ["a", "b", "a twin"], seed=1).x[:].reshape(3, 30, -1)
    assert not any(np.array_equal(seen[k], other[k]) for k in range(3))


@pytest.mark.parametrize("how", HOWS)
def test_a_clients_change_is_the_same_whoever_else_takes_part(photographs, how):
    everyone = np.arange(300)
    mine, others = everyone[40:90], np.setdiff1d(everyone, everyone[40:90])
    few = shifted(photographs, [others, mine], ["rest", "me"], how)
    many = shifted(photographs, [mine, *np.array_split(others, 7)], ["me", *"abcdefg"], how)
    assert np.array_equal(few.x[40:90], many.x[40:90])
    assert not np.array_equal(few.x[90:], many.x[90:])


def test_labels_and_order_stay(photographs):
    seen = see(photographs, "camera:0.01", ["a", "b"])
    assert seen.y is photographs.y
    assert len(seen.x) == len(photographs)
    assert seen.x.shape == photographs.x.shape
    # A hundredth of a stop: still the same photographs, in the same places.
    assert np.abs(seen.x[:].astype(int) - photographs.x).max() <= 8


def test_images_are_the_same_however_they_are_sliced(photographs):
    seen = see(photographs, "camera:1", ["a", "b", "c"])
    whole = seen.x[:]
    assert np.array_equal(np.concatenate([seen.x[i : i + 7] for i in range(0, 300, 7)]), whole)
    assert np.array_equal(seen.x[np.array([5, 250, 100])], whole[[5, 250, 100]])


def test_the_data_set_itself_is_never_changed(photographs):
    before = photographs.x.copy()
    see(photographs, "camera:1", ["a"]).x[:]
    assert np.array_equal(photographs.x, before)


def test_neutral_changes_change_nothing(photographs, grey):
    for data in (photographs, grey):
        assert np.array_equal(Camera(**NEUTRAL)(data.x[:9]), data.x[:9])
        assert np.array_equal(Rotation(0.0)(data.x[:9]), data.x[:9])


def test_what_a_camera_does(photographs):
    x = photographs.x[:9]
    brighter = Camera(**NEUTRAL | {"exposure": 2.0})(x)
    assert np.array_equal(brighter, np.minimum(2 * x.astype(int), 255))
    redder = Camera(**NEUTRAL | {"cast": (2.0, 1.0, 1.0)})(x)
    assert np.array_equal(redder[..., 0], brighter[..., 0])
    assert np.array_equal(redder[..., 1:], x[..., 1:])
    assert np.array_equal(Camera(**NEUTRAL | {"gamma": 2.0})(x), np.rint(255 * (x / 255) ** 2))
    flatter = Camera(**NEUTRAL | {"contrast": 0.5})(x)
    assert (int(flatter.min()), int(flatter.max())) == (64 + int(x.min()) // 2, 64 + int(x.max()) // 2)
    blurred = Camera(**NEUTRAL | {"blur": 1.0})(x)
    assert blurred.std() < x.std()
    assert abs(blurred.mean() - x.mean()) < 0.5
    assert np.array_equal(Camera(**NEUTRAL | {"blur": 0.13})(x), x)  # too little to reach a neighbour
    # Channels and neighbouring images do not run into each other.
    one, lit = np.zeros((3, 32, 32, 3), np.uint8), (1, 16, 16, 2)
    one[lit] = 255
    spot = Camera(**NEUTRAL | {"blur": 1.0})(one)
    assert spot[1, :, :, 2].any()
    assert not spot[[0, 2]].any()
    assert not spot[..., :2].any()


def test_a_quarter_turn_is_exact(photographs, grey):
    for data in (photographs, grey):
        assert np.array_equal(Rotation(90.0)(data.x[:9]), np.rot90(data.x[:9], 1, axes=(1, 2)))


def test_strength_is_a_bound():
    rng = np.random.default_rng(0)
    cameras = [Camera.draw(0.5, rng) for _ in range(200)]
    factors = np.array([[c.exposure, c.gamma, c.contrast, *c.cast] for c in cameras])
    assert np.abs(np.log2(factors)).max() <= 0.5
    assert np.abs(np.log2(factors)).max() > 0.45
    assert 0 <= min(c.blur for c in cameras) < max(c.blur for c in cameras) <= 0.25
    angles = [Rotation.draw(30, rng).degrees for _ in range(200)]
    assert -30 <= min(angles) < -25 < 25 < max(angles) <= 30


class Means:
    """A backbone that counts its inputs: the mean of each column of pixels."""

    name, dim, fingerprint = "means", 28, "means-1"

    def __init__(self):
        self.seen = 0

    def __call__(self, batch):
        self.seen += len(batch)
        return batch.mean(axis=1, dtype=np.float32)


def test_features_are_extracted_once_for_each_content(grey, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAM_CACHE", str(tmp_path))
    backbone = Means()
    first = featurize(see(grey, "rotation:45", ["a", "b"]), backbone)
    again = featurize(see(grey, "rotation:45", ["a", "b"]), backbone)
    assert backbone.seen == 300
    assert np.array_equal(first.x, again.x)
    assert not np.array_equal(first.x, featurize(grey, backbone).x)
    others = [
        see(grey, "rotation:45", ["a", "b"], seed=1),
        see(grey, "rotation:46", ["a", "b"]),
        see(grey, "camera:45", ["a", "b"]),
        see(grey, "rotation:45", ["a", "c"]),
        see(grey, "rotation:45", ["b", "a"]),
        see(grey, "rotation:45", ["a", "b", "c"]),
    ]
    assert len({data.fingerprint for data in (grey, first, *others)}) == 8
    for data in others:
        featurize(data, backbone)
    assert backbone.seen == 300 * 8


def prepare(**changed):
    about = {"data": "mnist", "backbone": "pixels", "clients": 5, "partition": "dirichlet:1", "test": "local"}
    return Scenario(**about | {"test_fraction": 0.2, "seed": 0, "samples": 400} | changed).prepare()


def test_without_a_shift_clients_have_the_features_as_they_are():
    prepared = prepare()
    data = load_features("mnist", backbone="pixels", samples=400)
    wanted = fg.make_clients(data, fg.partition.dirichlet(data.y, clients=5, alpha=1.0, seed=0))
    assert prepared.fingerprint == f"{data.fingerprint}/pixels"
    for client, want in zip(prepared.clients, wanted, strict=True):
        assert np.array_equal(client.x, want.x)
        assert np.array_equal(client.x_test, want.x_test)


def test_training_and_test_images_go_through_the_same_change():
    plain, turned = prepare(), prepare(shift="rotation:180")
    assert plain.fingerprint != turned.fingerprint
    for before, after in zip(plain.clients, turned.clients, strict=True):
        assert np.array_equal(before.y, after.y)
        assert np.array_equal(before.y_test, after.y_test)
        change = Rotation.draw(180, generator(0, "shift", before.name))
        for was, now in ((before.x, after.x), (before.x_test, after.x_test)):
            images = np.rint(was * 255).astype(np.uint8).reshape(-1, 28, 28)
            assert np.array_equal(np.rint(now * 255).reshape(-1, 28, 28), change(images))


def test_one_model_for_all_suffers_more_than_one_each():
    options = ("--data", "mnist", "--backbone", "pixels", "--samples", "3000", "--clients", "5", "--partition", "iid")

    def accuracy(method, *more):
        done = run("run", "--method", method, *options, *more, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["accuracy"]["client_mean"]

    loss = {name: accuracy(name) - accuracy(name, "--shift", "rotation:180") for name in ("afl", "local")}
    assert loss["afl"] > 0.1
    assert loss["afl"] > loss["local"] + 0.1


def test_compare_says_what_was_shifted(tmp_path):
    options = ["--data", "mnist", "--backbone", "pixels", "--samples", "300", "--clients", "4", "--methods", "local"]
    results = CliRunner().invoke(app, ["compare", *options, "--shift", "rotation:45", "--out", str(tmp_path)])
    assert results.exit_code == 0, results.output
    assert "mnist through pixels with shift rotation:45" in " ".join(results.output.split())
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["shift"] for line in lines} == {"rotation:45"}


@pytest.mark.parametrize(
    "how", ["camera", "camera:", "camera:0", "camera:-1", "camera:nan", "rotation:inf", "camera:x"]
)
def test_bad_strengths_are_refused(how):
    with pytest.raises(InvalidParameter, match="a number > 0; got"):
        read_shift(how)


def test_unknown_shifts_are_refused():
    with pytest.raises(UnknownName, match="did you mean 'camera'"):
        read_shift("camra:1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "digits"], "shift 'camera:1' is for images, and digits holds none"),
        (["--data", "spam-assassin", "--backbone", "minilm", "--samples", "50"], "spam-assassin holds none"),
        (
            ["--data", "mnist", "--backbone", "pixels", "--test", "standard"],
            "a test set that belongs to no single client",
        ),
    ],
)
def test_data_that_cannot_be_shifted_are_refused(options, words):
    done = run("run", *options, "--shift", "camera:1")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
