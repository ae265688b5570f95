// What is chosen stands in the address after "#": a reload, a link and the back button lead to the same view.
const START = state.metric;
let written = location.hash;
const writeAddress = () => {
  // The metric is always there: an empty address would scroll to the top.
  const parts = new URLSearchParams({ metric: METRICS[state.metric] });
  if (state.focus) parts.set("setting", where(state.focus));
  if (state.seed !== null) parts.set("seed", state.seed);
  if (state.sort) parts.set("sort", `${state.sort.key}:${state.sort.down ? "down" : "up"}`);
  for (const key of state.off) parts.append("hide", key);
  const text = `#${parts}`;
  if (text === written) return;
  written = text;
  location.hash = text;
};
// What an address says that these results do not have is left out.
const readAddress = () => {
  written = location.hash;
  const parts = new URLSearchParams(written.slice(1));
  const metric = METRICS.indexOf(parts.get("metric"));
  state.metric = metric < 0 ? START : metric;
  const known = [
    ...facets.map((facet) => [facet.name, facet.values]),
    ["Methods", data.methods.map((method) => method.label)],
  ];
  state.off = new Set();
  for (const [kind, values] of known) {
    const off = values.map((value) => `${kind}:${value}`).filter((key) => parts.getAll("hide").includes(key));
    if (off.length < values.length) for (const key of off) state.off.add(key);
  }
  const setting = data.columns.findIndex((_, c) => where(c) === parts.get("setting"));
  state.focus = Math.max(0, setting);
  state.seed = parts.has("seed") ? +parts.get("seed") : null;
  const [key, direction] = (parts.get("sort") || "").split(":");
  state.sort = key ? { key, down: direction === "down" } : null;
};
