"""Linear algebra on families of sets: which of them show a small group of parties by their sums."""

from itertools import combinations

import numpy as np


def singled_out(families, least):
    """Return which families' sums show a group of fewer than `least` parties: a combination that counts no others.

    `families` are (k, sets, parties) of 0 and 1. There is a combination which counts parties of a group alone if, and
    only if, the rank is smaller without the group's columns.
    """
    families = np.asarray(families, dtype=np.float64)
    grams = families.transpose(0, 2, 1) @ families
    ranks = np.linalg.matrix_rank(grams, hermitian=True)
    found = np.zeros(len(families), dtype=bool)
    parties = families.shape[2]
    for group in combinations(range(parties), least - 1):
        others = [party for party in range(parties) if party not in group]
        found |= np.linalg.matrix_rank(grams[:, others][:, :, others], hermitian=True) < ranks
    return found
