// The results and what is shown of them.
const data = JSON.parse(document.getElementById("data").textContent);
const METRICS = Object.keys(data.metrics);
const metricAt = (i) => data.metrics[METRICS[i]];
const state = { metric: METRICS.indexOf(data.metric), off: new Set(), sort: null, focus: 0, seed: null, client: null };
const metricNow = () => metricAt(state.metric);
// Decimals as tables have them: always the same, or as many as make four digits.
const placesOf = (value, { decimals }) =>
  decimals ?? (value ? Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value)))) : 3);
const figure = (value, metric = metricNow()) => value.toFixed(placesOf(value, metric));
const plusMinus = (around, value, metric = metricNow()) => `± ${around.toFixed(placesOf(value, metric))}`;
const told = (value, around = null) =>
  [figure(value), around ? plusMinus(around, value) : "", metricNow().unit].filter(Boolean).join(" ");
// Below 0 if the first figure is the better one.
const compare = (a, b) => (metricNow().lower ? a - b : b - a);

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
  // An empty view is useless: switching off the last value switches all of them on again.
  if (values.every((other) => !isOn(kind, other))) for (const other of values) state.off.delete(`${kind}:${other}`);
};
const columnIsOn = (c) => facets.every((facet) => isOn(facet.name, facet.of(data.columns[c])));
const methodIsOn = (m) => isOn("Methods", data.methods[m].label);
const shownColumns = () => [...data.columns.keys()].filter(columnIsOn);
const shownMethods = () => [...data.methods.keys()].filter(methodIsOn);

// Single clients are shown of one seed at a time: a setting's own choice, or the one that the reader has chosen.
const views = [{ charts: data.charts, clients: data.clients, seeds: data.columns.map((column) => column.seed) }].concat(
  data.others,
);
const viewOf = (c) => views.find((view) => state.seed !== null && view.seeds[c] === state.seed) || views[0];
const seedsOf = (c) =>
  views
    .map((view) => view.seeds[c])
    .filter((seed) => seed !== null)
    .sort((a, b) => a - b);
// The descriptions of charts: those of the chosen metric, and those that have none.
const chartsOf = (kind, charts = data.charts) =>
  charts.filter((chart) => chart.kind === kind && [undefined, METRICS[state.metric]].includes(chart.metric));
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
const EMPTY = {
  means: METRICS.map(() => null),
  halves: METRICS.map(() => null),
  trivial: [],
  marks: [],
  runs: [],
  failed: 0,
};
const cellOf = (m, c) => cells.get(cellKey(m, c)) || EMPTY;
// Figures are already rounded, so that what looks equal ranks equal.
const cellValue = (m, c, i = state.metric) => cellOf(m, c).means[i];
const half = (m, c) => cellOf(m, c).halves[state.metric];
const overall = (m, columns, i = state.metric) => {
  const found = columns.map((c) => cellValue(m, c, i));
  return found.length && found.every((value) => value !== null) ? +figure(mean(found), metricAt(i)) : null;
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
// What is bold (1) and underlined (2) in a setting, by tests of all methods, hidden ones included.
const tested = (c, methods) => new Map(methods.map((m) => [m, cellOf(m, c).marks[state.metric]]));
// Means over settings are not tested: the two best are underlined. The reference takes no part, equal ones rank equal.
const ranking = (value, methods) => {
  const found = methods
    .filter((m) => !data.methods[m].reference && value(m) !== null)
    .map((m) => ({ m, value: value(m) }))
    .sort((a, b) => compare(a.value, b.value));
  if (found.length < 2) return new Map();
  const places = [...new Set(found.map((one) => one.value))].slice(0, 2);
  return new Map(found.filter((one) => places.includes(one.value)).map((one) => [one.m, 2]));
};
const where = (c) => [data.columns[c].group, data.columns[c].spread].filter(Boolean).join(", ");
