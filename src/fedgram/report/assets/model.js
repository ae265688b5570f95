// The results and what is shown of them.
const data = JSON.parse(document.getElementById("data").textContent);
const METRICS = Object.keys(data.metrics);
const state = { metric: METRICS.indexOf(data.metric), off: new Set(), sort: null, focus: 0, client: null };

// Every way to narrow down: what it is called, and its value for a column of the table.
const facets = [
  { name: "Data", of: (column) => column.about },
  { name: "Clients", of: (column) => column.crowd },
  { name: "Spread", of: (column) => column.spread },
].map((facet) => ({ ...facet, values: [...new Set(data.columns.map(facet.of))] }));

const isOn = (kind, value) => !state.off.has(`${kind}:${value}`);
const toggle = (kind, value, values) => {
  const key = `${kind}:${value}`;
  if (!state.off.delete(key)) state.off.add(key);
  // To show nothing helps nobody: taking away the last one brings all back.
  if (values.every((other) => !isOn(kind, other))) for (const other of values) state.off.delete(`${kind}:${other}`);
};
const columnIsOn = (c) => facets.every((facet) => isOn(facet.name, facet.of(data.columns[c])));
const methodIsOn = (m) => isOn("Methods", data.methods[m].label);
const shownColumns = () => [...data.columns.keys()].filter(columnIsOn);
const shownMethods = () => [...data.methods.keys()].filter(methodIsOn);

// The descriptions of charts: those of the chosen metric, and those that have none.
const chartsOf = (kind) =>
  data.charts.filter((chart) => chart.kind === kind && [undefined, METRICS[state.metric]].includes(chart.metric));
// What of a panel is shown: series of methods that are on, in settings that are on.
const shownSeries = (panel) =>
  (panel.series || []).filter(
    (series) => (series.method === undefined || methodIsOn(series.method)) && series.columns.some(columnIsOn),
  );

const cellKey = (m, c) => m * data.columns.length + c;
const cells = new Map(data.cells.map((cell) => [cellKey(cell.m, cell.c), { ...cell, runs: [], failed: 0 }]));
for (const run of data.runs) {
  const cell = cells.get(cellKey(run.m, run.c));
  if (run.failed) cell.failed++;
  else cell.runs.push(run);
}
const EMPTY = { means: METRICS.map(() => null), halves: METRICS.map(() => null), runs: [], failed: 0 };
const cellOf = (m, c) => cells.get(cellKey(m, c)) || EMPTY;
// Accuracies are in percent and already rounded, so that what looks equal ranks equal.
const accuracy = (m, c) => cellOf(m, c).means[state.metric];
const half = (m, c) => cellOf(m, c).halves[state.metric];
const overall = (m, columns) => {
  const found = columns.map((c) => accuracy(m, c));
  return found.length && found.every((value) => value !== null) ? +percent(mean(found)) : null;
};
// Half of what ± spans, on average over settings: as wide as if all of them erred alike.
const overallHalf = (m, columns) => mean(columns.map((c) => half(m, c) || 0));
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
// What is bold (1) and underlined (2) of a column. The reference takes no part, and equal figures rank equal. The best
// is bold only if what its ± spans does not overlap the next one's; else it is underlined, as the second is.
const ranking = (value, around, methods) => {
  const found = methods
    .filter((m) => !data.methods[m].reference && value(m) !== null)
    .map((m) => ({ m, value: value(m), half: around(m) || 0 }))
    .sort((a, b) => b.value - a.value);
  if (found.length < 2) return new Map();
  const places = [...new Set(found.map((one) => one.value))].slice(0, 2);
  const standsOut = (best) => {
    const others = found.filter((one) => one !== best),
      next = others.filter((one) => one.value === others[0].value);
    return next.every((one) => +percent(best.value - best.half) >= +percent(one.value + one.half));
  };
  return new Map(
    found
      .filter((one) => places.includes(one.value))
      .map((one) => [one.m, one.value === places[0] && standsOut(one) ? 1 : 2]),
  );
};
const where = (c) => [data.columns[c].group, data.columns[c].spread].filter(Boolean).join(", ");
