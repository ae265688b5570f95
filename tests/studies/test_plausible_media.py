"""Features of images and texts are neither 0 and 1 nor within a range: no rule of the study bounds their sums."""

import numpy as np
import pytest

from fedgram import Moments
from fedgram.core.errors import NotMoments
from fedgram.studies.media import Image
from fedgram.studies.plausible import check_moments
from fedgram.studies.study import Study

STUDY = Study("scans", "y", {"scan": Image("lite0:96", digest="0" * 16, features=2, missing="mean")}, ("ill", "well"))


def moments(x):
    return Moments.of(x, ["ill", "well"], classes=STUDY.classes, features=STUDY.features, columns=STUDY.sent)


def test_features_may_be_any_numbers():
    check_moments(STUDY, moments([[3.7, -250.0, 0.0], [0.0, 0.0, 1.0]]))


def test_whether_one_is_missing_is_0_or_1():
    assert STUDY.sent[-1] == "scan missing"
    with pytest.raises(NotMoments, match="column 'scan missing' is 0 or 1"):
        check_moments(STUDY, moments(np.array([[3.7, -250.0, 0.5], [0.0, 0.0, 0.5]])))
