"""The one statistic: Gram matrix and class sums, how they are computed, checked, added up and solved."""
