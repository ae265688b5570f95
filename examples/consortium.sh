#!/bin/sh
# A consortium by files, from keys to a certificate of forgetting: five parties, one late, one replaced, one removed.
#
#     sh examples/consortium.sh [tables|images] [folder]
#
# `tables` are patients of five hospitals (examples/hospitals.py), `images` handwritten digits, pixel by pixel. No
# network is needed: each .fgm file could as well be mailed. In the end the published model is compared with that of
# the same rows in one process.
set -eu

what=${1:-tables}
folder=${2:-consortium-$what}
examples=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
fedgram() { "$python" -c 'from fedgram.cli import main; main()' "$@"; }
say() { printf '\n== %s\n' "$*"; }

mkdir -p "$folder"
cd "$folder"

say "the parties' tables, and the study that they have agreed on"
if [ "$what" = tables ]; then
    "$python" "$examples/hospitals.py" . >/dev/null
    # Two more hospitals: patients whom the example holds back for testing.
    mv north-test.csv west.csv
    mv south-test.csv centre.csv
else
    "$python" "$examples/digits_tables.py"
fi
# The four that agree now; centre comes later.
sed 's/^parties = .*/parties = ["north", "south", "east", "west"]/' study.toml >agreed.toml
mv agreed.toml study.toml
# West keeps every fourth row for testing. Models are not fitted on these: every model looks good on its training rows.
awk 'NR == 1 || NR % 4 == 0' west.csv >west-test.csv
awk 'NR == 1 || NR % 4 != 0' west.csv >learned.csv
mv learned.csv west.csv

say "keys, entered into the study"
for party in north south east west coordinator; do
    fedgram keys new "$party"
done
fedgram study keys study.toml north.pub south.pub east.pub west.pub --coordinator coordinator.pub
fedgram study show study.toml | head -n 1

say "each party summarizes its table: the one file that it sends"
for party in north south east west; do
    fedgram summarize study.toml "$party.csv" --key "$party.key" --out "$party.fgm" >/dev/null
done
fedgram inspect north.fgm

say "the coordinator adds up"
fedgram join store north.fgm south.fgm east.fgm west.fgm --key coordinator.key
fedgram publish store --out first.fgm

say "centre is late: the coordinator adds it to the study, and no other party does anything"
fedgram keys new centre
fedgram amend store --add centre.pub

say "it mails its file: sealed, so that only the coordinator can read it"
fedgram summarize study.toml centre.csv --key centre.key --seal --out centre.fgm >/dev/null
fedgram join store centre.fgm

say "north has corrected its table"
rows=$(($(wc -l <north.csv) - 20))
head -n "$rows" north.csv >corrected.csv
mv corrected.csv north.csv
fedgram summarize study.toml north.csv --key north.key --out north-corrected.fgm >/dev/null
fedgram join store north-corrected.fgm --replace

say "south leaves"
fedgram remove store south --out south-removed.fgm
fedgram verify store south-removed.fgm

say "the model of those who are in"
fedgram publish store --out global.fgm
fedgram status store --html status.html
fedgram describe store
fedgram log store --expect first.fgm

say "south checks, without the store, that the model is without it"
fedgram inspect south-removed.fgm --study study.toml
fedgram verify south-removed.fgm --published global.fgm --study study.toml

say "the better of a party's own and the global model, and both judged by rows that neither has seen"
fedgram personalize global.fgm west.csv --key west.key --out west-own.fgm
fedgram evaluate global.fgm west-test.csv
fedgram evaluate west-own.fgm west-test.csv

say "compared with the same rows in one process"
"$python" - <<'END'
import numpy as np
import fedgram as fg
from fedgram.exchange.format import fgm
from fedgram.studies import Study
from fedgram.studies.encoding import read_client

study = Study.read("study.toml")
clients = [read_client(study, name, f"{name}.csv") for name in ("east", "west", "centre", "north")]
pooled = fg.FedGram().fit(clients, study=study, classes=study.classes).model
published = fgm.read("global.fgm").payload.model
scores = [model.scores(np.concatenate([client.x for client in clients])) for model in (published, pooled)]
apart = np.abs(scores[0] - scores[1]).max() / np.abs(scores[1]).max()
print(f"published and pooled scores differ by {apart:.1e} of their size")
assert apart < 1e-9
END
