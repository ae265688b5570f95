"""What real parties agree on before they add anything up: which columns there are, what they mean, and who takes part.

A `Study` turns a party's table into the columns that are sent, and pooled sums of these into the columns that a model
is made of. Nothing here knows methods or engines.
"""

from fedgram.studies.study import Study
from fedgram.studies.summaries import missing_counts, summarize

__all__ = ["Study", "missing_counts", "summarize"]
