// A figure against a cost: a mark for each method, small ones for its settings, lines for the references.
const drawScatter = (holder, chart) => {
  const columns = shownColumns();
  const series = shownSeries(chart.panels[0]).map((one) => ({
    ...one,
    points: one.columns
      .map((c, i) => ({ c, x: one.x ? one.x[i] : null, y: one.y[i], half: one.half[i] }))
      .filter((point) => columns.includes(point.c)),
  }));
  const marks = series
    .filter((one) => one.draw === "marks")
    .map((one) => ({ ...one, cost: mean(one.points.map((p) => p.x)), height: mean(one.points.map((p) => p.y)) }));
  if (!marks.length) return say(holder, "Nothing to draw with these filters.");
  const write = WRITE[chart.x.unit];
  const f = frame(holder, {
    height: 340,
    label: `${chart.title}: ${marks.map((one) => `${one.label}: ${told(one.height)} at ${write(one.cost)}`).join("; ")}`,
  });
  const alone = columns.length === 1;
  const all = marks.flatMap((one) => one.points),
    reach = [Math.min(...all.map((p) => p.x)), Math.max(...all.map((p) => p.x))],
    room = Math.max(1.25, (reach[1] / reach[0]) ** 0.12),
    most = chart.y.unit === "percent" ? 100 : Infinity,
    least = chart.y.unit === "percent" || metricNow().lower ? 0 : -Infinity,
    heights = all.flatMap((p) =>
      alone && p.half ? [Math.max(least, p.y - p.half), Math.min(most, p.y + p.half)] : [p.y],
    );
  const x = logarithmic(reach[0] / room, reach[1] * room, f.x0, f.x1),
    y = linear(...paddedFor(chart.y, heights), f.y0, f.y1);
  axisY(f, y, chart.y);
  axisX(f, x, chart.x);
  const covered = drawReferences(f, x, y, all, series, columns);
  for (const { look, points } of marks)
    for (const p of points) {
      if (alone && p.half)
        f.chart.append(whisker(look, x(p.x), y(Math.max(least, p.y - p.half)), y(Math.min(most, p.y + p.half))));
      if (!alone) f.chart.append(mark(look, 2.8, { transform: `translate(${x(p.x)} ${y(p.y)})`, opacity: 0.35 }));
    }
  for (const { label, look, points, cost: spent, height: reached } of marks) {
    const [{ half: around }] = points;
    const rows = [
      [metricNow().what, told(reached, alone ? around : null)],
      [chart.x.title, write(spent)],
      ["settings", String(points.length)],
    ];
    f.chart.append(
      mark(look, 7, {
        transform: `translate(${x(spent)} ${y(reached)})`,
        stroke: "var(--card)",
        "stroke-width": 1.5,
        ...focusable(label, rows),
      }),
    );
  }
  placeNames(
    f,
    marks.map((one) => ({ x: x(one.cost), y: y(one.height), name: one.label })),
    covered,
  );
  holder.append(
    figures(chart.title, () => [
      ["method", chart.y.unit === "percent" ? "accuracy, %" : chart.y.title, chart.x.title],
      marks.map((one) => [one.label, figure(one.height), write(one.cost)]),
    ]),
  );
  return null;
};
// References as dashed lines, named at the end where fewer marks are; returns what their names cover.
const drawReferences = (f, x, y, all, series, columns) =>
  series
    .filter((one) => one.draw === "reference" && one.points.length === columns.length)
    .map((one) => ({ ...one, v: mean(one.points.map((p) => p.y)) }))
    .filter(({ v }) => y(v) >= f.y1 && y(v) <= f.y0)
    .map(({ label, look, method, v }) => {
      const text = `${label}${data.methods[method].trivial ? "" : ", global"} ${figure(v)}`,
        long = widthOf(text);
      const near = (from) =>
        all.filter((p) => Math.abs(x(p.x) - from - long / 2) < long / 2 + 12 && Math.abs(y(p.y) - y(v) + 10) < 14)
          .length;
      const start = near(f.x1 - long) <= near(f.x0 + 4) ? f.x1 - long : f.x0 + 4;
      f.chart.append(
        svg("line", { x1: f.x0, x2: f.x1, y1: y(v), y2: y(v), stroke: colour(look), "stroke-dasharray": "5 4" }),
        svg("text", { class: "halo", x: start, y: y(v) - 6 }, text),
      );
      return [start, y(v) - 19, start + long, y(v) + 1];
    });
