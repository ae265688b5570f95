// The headline. Personal methods and global models are named apart: a personal model knows its client, a global one
// cannot, so only global ones are set against the model of all data in one place.
const drawTiles = (section) => {
  const columns = shownColumns(),
    best = [true, false, null].map((personal) => bestOf(personal, columns)).filter(Boolean);
  section.replaceChildren(...best.map((one) => bestTile(one, columns)), ...costTile(best, columns), runsTile());
};
const tile = (term, value, more) =>
  el("div", { class: "tile" }, el("dt", {}, term), el("dd", {}, value, el("small", {}, more)));
const NAMES = new Map([
  [true, "Best personal method"],
  [false, "Best global model"],
]);
const bestOf = (personal, columns) => {
  const rivals = shownMethods().filter((m) => !data.methods[m].reference && data.methods[m].personal === personal);
  const ranked = rivals
    .map((m) => ({ m, personal, value: overall(m, columns), rivals }))
    .filter((one) => one.value !== null)
    .sort((a, b) => compare(a.value, b.value));
  return ranked[0];
};
const bestTile = ({ m, personal, value, rivals }, columns) => {
  const around = columns.length === 1 ? half(m, columns[0]) : null,
    parts = [metricNow().unit === "%" ? told(value, around) : `${metricNow().what} ${told(value, around)}`];
  if (columns.length > 1 && rivals.length > 1) {
    const beats = (other, c) => cellValue(other, c) === null || compare(cellValue(m, c), cellValue(other, c)) <= 0;
    const wins = columns.filter((c) => rivals.every((other) => beats(other, c))).length;
    parts.push(`first in ${wins} of ${columns.length} settings`);
  }
  const pooled = (r) => data.methods[r].reference && !data.methods[r].trivial,
    reference = shownMethods().find((r) => pooled(r) && overall(r, columns) !== null);
  if (personal === false && reference !== undefined) {
    const all = overall(reference, columns),
      places = placesOf(all, metricNow()),
      gap = +(value - all).toFixed(places),
      sign = gap < 0 ? "−" : gap > 0 ? "+" : "±",
      unit = metricNow().unit === "%" ? "points" : metricNow().unit;
    parts.push(
      `${[sign + Math.abs(gap).toFixed(places), unit].filter(Boolean).join(" ")} against all data in one place ` +
        `(${data.methods[reference].label}: ${told(all)})`,
    );
  }
  const extreme = `${metricNow().lower ? "Lowest" : "Highest"} ${metricNow().what} on average`;
  return tile(NAMES.get(personal) || extreme, data.methods[m].label, parts.join(", "));
};
const costTile = (best, columns) => {
  const [first, ...others] = best.filter(({ m }) => cost("bytes", m, columns) !== null);
  if (!first) return [];
  const sent = (kind, m) => bytes(cost(kind, m, columns)),
    more = others.map(({ m }) => `; ${sent("bytes", m)} with ${data.methods[m].label}`);
  const text = `${sent("up", first.m)} up, ${sent("down", first.m)} down, with ${data.methods[first.m].label}`;
  return [tile("What a client exchanges", sent("bytes", first.m), text + more.join(""))];
};
const runsTile = () => {
  const settings = data.columns.length,
    parts = [`${settings} setting${settings > 1 ? "s" : ""}`, `${data.seeds} seed${data.seeds > 1 ? "s" : ""}`];
  if (data.failures.length) parts.push(`${data.failures.length} failed`);
  const runs = data.runs.filter(({ m }) => !data.methods[m].trivial).length;
  return tile("Runs", runs.toLocaleString("en"), parts.join(", "));
};
