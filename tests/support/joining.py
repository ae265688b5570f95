"""Methods whose clients may join and leave afterwards."""

import fedgram as fg

METHODS = [
    fg.AFL(),
    fg.AFL(gamma=2.0, ri=False),
    fg.FedHiP(),
    fg.FedHiP(beta=1.0, intercept=False),
    fg.APFL(gamma=1.0, dim_primary=16, dim_refine=12),
    fg.APFL(dim_primary=16, dim_refine=12, exact=True),
    fg.FedGram(),
]
