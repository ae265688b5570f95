// Accuracy against what it costs.
const drawCost = (holder, kind, caption, format) => {
  const columns = shownColumns();
  const points = shownMethods()
    .filter((m) => !data.methods[m].reference)
    .map((m) => {
      const each = columns
        .map((c) => ({ c, x: cost(kind, m, [c]), y: accuracy(m, c) }))
        .filter((p) => p.x > 0 && p.y !== null);
      return {
        m,
        each,
        x: each.length ? mean(each.map((p) => p.x)) : 0,
        y: each.length ? mean(each.map((p) => p.y)) : 0,
      };
    })
    .filter((p) => p.each.length);
  if (!points.length) return holder.replaceChildren(el("p", { class: "empty" }, "Nothing to draw with these filters."));
  const all = points.flatMap((p) => p.each);
  const title = `Accuracy against ${caption}`;
  const f = frame(holder, {
    height: 330,
    title,
    description: points.map((p) => `${data.methods[p.m].label}: ${percent(p.y)} % at ${format(p.x)}`).join("; "),
  });
  const reach = [Math.min(...all.map((p) => p.x)), Math.max(...all.map((p) => p.x))];
  const room = Math.max(1.25, (reach[1] / reach[0]) ** 0.12);
  const x = logarithmic(reach[0] / room, reach[1] * room, f.x0, f.x1),
    y = linear(
      ...padded(
        all.map((p) => p.y),
        0.5,
      ),
      f.y0,
      f.y1,
    );
  axisY(f, y);
  axisX(f, x, format, `${caption} (logarithmic)`);
  const references = shownMethods()
    .filter((m) => data.methods[m].reference)
    .map((m) => [m, overall(m, columns)])
    .filter(([, v]) => v !== null);
  const covered = [];
  for (const [m, v] of references) {
    if (y(v) < f.y1 || y(v) > f.y0) continue;
    const text = `${data.methods[m].label} ${percent(v)}`,
      long = text.length * 6.6;
    // At the end of the line where fewer marks are.
    const near = (from) =>
      all.filter((p) => Math.abs(x(p.x) - from - long / 2) < long / 2 + 12 && Math.abs(y(p.y) - y(v) + 10) < 14).length;
    const start = near(f.x1 - long) <= near(f.x0 + 4) ? f.x1 - long : f.x0 + 4;
    covered.push([start, y(v) - 19, start + long, y(v) + 1]);
    f.chart.append(
      svg("line", { x1: f.x0, x2: f.x1, y1: y(v), y2: y(v), stroke: colour(m), "stroke-dasharray": "5 4" }),
      svg("text", { class: "halo", x: start, y: y(v) - 6 }, text),
    );
  }
  if (columns.length > 1)
    for (const p of points)
      for (const q of p.each)
        f.chart.append(mark(p.m, 2.8, { transform: `translate(${x(q.x)} ${y(q.y)})`, opacity: 0.35 }));
  for (const p of points) {
    f.chart.append(
      mark(p.m, 7, {
        transform: `translate(${x(p.x)} ${y(p.y)})`,
        stroke: "var(--card)",
        "stroke-width": 1.5,
        tabindex: 0,
        on: hint(data.methods[p.m].label, () => [
          ["accuracy", `${percent(p.y)} %`],
          [caption, format(p.x)],
          ["settings", String(p.each.length)],
        ]),
      }),
    );
  }
  placeNames(
    f,
    points.map((p) => ({ x: x(p.x), y: y(p.y), name: data.methods[p.m].label })),
    covered,
  );
  holder.append(
    figures(
      ["method", "accuracy, %", caption],
      points.map((p) => [data.methods[p.m].label, percent(p.y), format(p.x)]),
    ),
  );
};
