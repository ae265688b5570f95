// The results and what is shown of them.
const data = JSON.parse(document.getElementById("data").textContent);
const METRICS = Object.keys(data.metrics);
const METRIC_NAMES = { client_mean: "Client mean", pooled: "Pooled", worst_decile: "Worst decile" };
const state = { metric: METRICS.indexOf(data.metric), off: new Set(), sort: null, focus: 0, client: null };

// Every way to narrow down: what it is called, and its value for a column of the table.
const facets = [
  { name: "Data", of: (column) => column.about },
  { name: "Clients", of: (column) => column.crowd },
  { name: "Spread", of: (column) => column.spread },
].map((facet) => ({ ...facet, values: [...new Set(data.columns.map(facet.of))] }));

const isOn = (kind, value) => !state.off.has(`${kind}\n${value}`);
const toggle = (kind, value, values) => {
  const key = `${kind}\n${value}`;
  if (!state.off.delete(key)) state.off.add(key);
  // To show nothing helps nobody: taking away the last one brings all back.
  if (values.every((other) => !isOn(kind, other))) values.forEach((other) => state.off.delete(`${kind}\n${other}`));
};
const shownColumns = () =>
  data.columns.map((_, c) => c).filter((c) => facets.every((facet) => isOn(facet.name, facet.of(data.columns[c]))));
const shownMethods = () => data.methods.map((_, m) => m).filter((m) => isOn("Methods", data.methods[m].label));

const cellKey = (m, c) => m * data.columns.length + c;
const cells = new Map(data.cells.map((cell) => [cellKey(cell.m, cell.c), { ...cell, runs: [], failed: 0 }]));
for (const run of data.runs) {
  const cell = cells.get(cellKey(run.m, run.c));
  if (run.failed) cell.failed++;
  else cell.runs.push(run);
}
const EMPTY = { means: METRICS.map(() => null), deviations: METRICS.map(() => null), runs: [], failed: 0 };
const cellOf = (m, c) => cells.get(cellKey(m, c)) || EMPTY;
// Accuracies are in percent and already rounded, so that what looks equal ranks equal.
const accuracy = (m, c) => cellOf(m, c).means[state.metric];
const overall = (m, columns) => {
  const found = columns.map((c) => accuracy(m, c));
  return found.length && found.every((value) => value !== null) ? +percent(mean(found)) : null;
};
const costs = {
  up: (run) => run.up,
  down: (run) => run.down,
  bytes: (run) => (run.up === null || run.down === null ? null : run.up + run.down),
  cpu: (run) => (data.methods[run.m].reference || run.cpu === null ? null : run.cpu),
};
const cost = (kind, m, columns) => {
  const found = columns.flatMap((c) => cellOf(m, c).runs.map(costs[kind])).filter((value) => value !== null);
  return found.length ? mean(found) : null;
};
// Best and second of a column; the reference takes no part, and equal figures rank equal.
const ranking = (column, methods) => {
  const found = methods
    .filter((m) => !data.methods[m].reference)
    .map((m) => [m, column(m)])
    .filter(([, value]) => value !== null);
  if (found.length < 2) return new Map();
  const places = [...new Set(found.map(([, value]) => value))].sort((a, b) => b - a);
  return new Map(found.map(([m, value]) => [m, places.indexOf(value) + 1]));
};
const where = (c) => [data.columns[c].group, data.columns[c].spread].filter(Boolean).join(", ");
