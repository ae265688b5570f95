// How figures spread over the clients of one setting; a client is followed through all methods.
const nameOf = (c, k) => viewOf(c).clients[c].names[k] || `client ${k}`;
const clientRows = (c, k, series, axis) => {
  const known = Object.entries(viewOf(c).clients[c].facts).filter(([, values]) => values[k] !== undefined);
  const rows = known.map(([name, values]) => [name, values[k].toLocaleString("en")]);
  if (!series) return rows;
  const own = Object.entries(series.facts || {}).map(([name, values]) => [
    name,
    bytes(Array.isArray(values) ? values[k] : values),
  ]);
  return [[axis.unit === "percent" ? "accuracy" : axis.title, said(series.x[k], axis.unit)], ...rows, ...own];
};
// The same small shift for the same client every time, so that dots do not jump.
const jitter = (k) => ((k * 0.618034) % 1) - 0.5;
const quantile = (sorted, q) => {
  const at = q * (sorted.length - 1),
    low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
};
const summary = (sorted) => [
  ["lowest", sorted[0]],
  ["quartile", quantile(sorted, 0.25)],
  ["median", quantile(sorted, 0.5)],
  ["mean", mean(sorted)],
  ["quartile", quantile(sorted, 0.75)],
  ["highest", sorted[sorted.length - 1]],
];

const drawStrip = (holder, chart, panel, follow) => {
  const rows = (panel ? shownSeries(panel) : []).map((one) => ({
    ...one,
    sorted: one.x.filter((v) => v !== null).sort((a, b) => a - b),
  }));
  const what = metricNow().unit === "%" ? "accuracies" : metricNow().what;
  if (!rows.length) return say(holder, `No ${what} of single clients in this setting.`);
  const labelled = holder.clientWidth > 560,
    pitch = labelled ? 38 : 50;
  const beside = Math.min(widestName(rows), 240),
    left = labelled ? beside + 40 : 24;
  const f = frame(holder, {
    height: rows.length * pitch + 54,
    left,
    top: 6,
    label: `${chart.title}, ${panel.title}: ${rows.map((row) => row.told).join("; ")}`,
  });
  const low = Math.min(...rows.map((row) => row.sorted[0])),
    high = Math.max(...rows.map((row) => row.sorted[row.sorted.length - 1])),
    room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  const ends =
    chart.x.unit === "percent"
      ? [Math.max(0, Math.floor((low - 4) / 10) * 10), 100]
      : [low < 0 ? low - room : Math.max(0, low - room), high + room];
  const x = linear(...ends, f.x0, f.x1 - 6);
  for (const tick of x.ticks(6))
    f.chart.append(svg("line", { class: "rule", x1: x(tick), x2: x(tick), y1: f.y1, y2: f.y0 }));
  axisX(f, x, chart.x);
  titleY(f, chart.y.title);
  const dots = rows.flatMap((row, i) => {
    const at = f.y1 + i * pitch + pitch / 2 + (labelled ? 0 : 7);
    f.chart.append(
      labelled
        ? svg("text", { class: "name", x: left - 12, y: at + 4, "text-anchor": "end" }, cutTo(row.label, beside))
        : svg("text", { class: "name", x: left, y: at - 15 }, row.label),
    );
    return drawRow(f, row, x, at, labelled ? 20 : 18, chart.x.unit);
  });
  const rings = svg("g", {});
  f.chart.append(rings);
  followClients(f, dots, panel.column, follow, chart.x);
  holder.append(
    figures(`${chart.title}, ${panel.title}`, () => [
      ["method", ...summary(rows[0].sorted).map(([name]) => name)],
      rows.map((row) => [row.label, ...summary(row.sorted).map(([, v]) => short(v, chart.x.unit))]),
    ]),
  );
  return (k) => rings.replaceChildren(...dots.filter((dot) => dot.k === k).map(ringOf));
};
const ringOf = (dot) =>
  svg("circle", {
    cx: dot.x,
    cy: dot.y,
    r: 5.5,
    fill: colour(dot.row.look),
    stroke: "var(--ink)",
    "stroke-width": 1.6,
  });
// A method's clients: the middle half as a bar, every client as a dot, the median, the mean. Returns the dots.
const drawRow = (f, row, x, at, tall, unit) => {
  const shade = colour(row.look),
    dense = row.sorted.length > 250,
    [a, b, half] = [0.25, 0.75, 0.5].map((q) => x(quantile(row.sorted, q)));
  const dots = row.x
    .map((v, k) => ({ row, k, v, x: v === null ? null : x(v), y: at + jitter(k) * tall * 0.9 }))
    .filter((dot) => dot.v !== null);
  f.chart.append(
    svg("rect", {
      x: a,
      y: at - tall / 2,
      width: Math.max(1, b - a),
      height: tall,
      rx: 4,
      fill: shade,
      opacity: 0.18,
    }),
    svg("path", {
      d: dots.map((dot) => `M${dot.x.toFixed(1)} ${dot.y.toFixed(1)}h0`).join(""),
      stroke: shade,
      "stroke-width": dense ? 3 : 5,
      "stroke-linecap": "round",
      opacity: dense ? 0.4 : 0.6,
    }),
    svg("line", { x1: half, x2: half, y1: at - tall / 2, y2: at + tall / 2, stroke: shade, "stroke-width": 2.5 }),
    svg("path", {
      d: SHAPES.D(4),
      transform: `translate(${x(mean(row.sorted))} ${at})`,
      fill: "var(--card)",
      stroke: shade,
      "stroke-width": 1.8,
      ...focusable(
        row.label,
        summary(row.sorted).map(([name, v]) => [name, said(v, unit)]),
      ),
    }),
  );
  return dots;
};
const followClients = (f, dots, c, follow, axis) => {
  const leave = () => {
    hideTip();
    follow(null);
  };
  f.chart.addEventListener("pointermove", (event) => {
    const box = f.chart.getBoundingClientRect(),
      px = ((event.clientX - box.left) / box.width) * f.width,
      py = ((event.clientY - box.top) / box.height) * f.height;
    let best = null,
      least = 400;
    for (const dot of dots) {
      const far = (dot.x - px) ** 2 + (dot.y - py) ** 2;
      if (far < least) [best, least] = [dot, far];
    }
    if (!best) return leave();
    showTip(event, `${nameOf(c, best.k)} · ${best.row.label}`, clientRows(c, best.k, best.row, axis));
    return follow(best.k);
  });
  f.chart.addEventListener("pointerleave", leave);
};
