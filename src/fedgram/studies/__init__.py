"""Studies: the agreement of real parties on columns, their meaning, and the parties, before anything is added up.

A `Study` turns a party's table into the columns that are sent, and pooled sums of these into the columns that a model
is made of. Nothing here knows methods or engines.
"""

from fedgram.data.own.blocks import open_table
from fedgram.data.own.cells import Notation
from fedgram.studies.encoding import read_client
from fedgram.studies.party_tables import missing_counts, summarize
from fedgram.studies.study import Study

__all__ = ["Notation", "Study", "missing_counts", "open_table", "read_client", "summarize"]
