// Accuracy per round: lines for iterative methods, stars for those that are done after one.
const drawRounds = (holder, c) => {
  const methods = shownMethods(),
    metric = METRICS[state.metric];
  const here = data.curves.filter((curve) => curve.c === c && methods.includes(curve.m));
  const iterative = new Set(here.map((curve) => curve.m));
  const curves = here
    .filter((curve) => curve.values[metric])
    .map((curve) => ({ m: curve.m, points: curve.rounds.map((round, i) => [round, curve.values[metric][i]]) }));
  const flat = methods
    .filter((m) => !iterative.has(m) && accuracy(m, c) !== null)
    .map((m) => ({ m, y: accuracy(m, c) }));
  if (!curves.length)
    return holder.replaceChildren(el("p", { class: "empty" }, "No accuracies per round in this setting."));
  const all = [...curves.flatMap((curve) => curve.points.map((p) => p[1])), ...flat.map((p) => p.y)];
  const last = Math.max(...curves.flatMap((curve) => curve.points.map((p) => p[0])));
  const beside = Math.min(widestName([...curves, ...flat].map(({ m }) => m)), holder.clientWidth * 0.36);
  const f = frame(holder, {
    height: 360,
    right: beside + 14,
    title: `Accuracy per round, ${where(c)}`,
    description: [
      ...curves.map(
        ({ m, points }) =>
          `${data.methods[m].label} ends at ${percent(points[points.length - 1][1])} % after ${points[points.length - 1][0]} rounds`,
      ),
      ...flat.map(
        ({ m, y }) =>
          `${data.methods[m].label} has ${percent(y)} % ${data.methods[m].reference ? "with all data in one place" : "after one round"}`,
      ),
    ].join("; "),
  });
  const x = linear(1, Math.max(last, 2), f.x0 + 14, f.x1 - 6),
    y = linear(...padded(all, 0.5), f.y0, f.y1);
  axisY(f, y);
  axisX(
    f,
    x,
    String,
    "round",
    x
      .ticks(8)
      .filter((tick) => tick >= 1 && Number.isInteger(tick))
      .concat(1),
  );
  const names = [];
  for (const { m, y: v } of flat) {
    f.chart.append(
      svg("line", {
        x1: x(1),
        x2: f.x1,
        y1: y(v),
        y2: y(v),
        stroke: colour(m),
        "stroke-dasharray": data.methods[m].reference ? "5 4" : "1.5 4",
        "stroke-linecap": "round",
        opacity: 0.8,
      }),
    );
    if (!data.methods[m].reference)
      f.chart.append(
        svg("path", {
          d: SHAPES.star(8),
          fill: colour(m),
          stroke: "var(--card)",
          transform: `translate(${x(1)} ${y(v)})`,
          tabindex: 0,
          on: hint(data.methods[m].label, () => [["one round", `${percent(v)} %`]]),
        }),
      );
    names.push({ m, at: y(v) });
  }
  for (const { m, points } of curves) {
    f.chart.append(
      svg("path", {
        d: `M${points.map(([r, v]) => `${x(r).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}`,
        fill: "none",
        stroke: colour(m),
        "stroke-width": 2,
        "stroke-linejoin": "round",
      }),
    );
    names.push({ m, at: y(points[points.length - 1][1]) });
  }
  // Names at the right end, pushed apart where they would meet.
  names.sort((a, b) => a.at - b.at);
  names.forEach((name, i) => {
    name.at = Math.max(name.at, i ? names[i - 1].at + 14 : f.y1);
  });
  for (let i = names.length - 1, low = f.y0 + 4; i >= 0; i--) low = (names[i].at = Math.min(names[i].at, low)) - 14;
  for (const { m, at } of names)
    f.chart.append(
      svg(
        "text",
        { x: f.x1 + 6, y: at + 4, style: `fill:${colour(m)};font-weight:600` },
        cutTo(data.methods[m].label, beside),
      ),
    );
  const cross = svg("line", { class: "axis", y1: f.y1, y2: f.y0, visibility: "hidden" });
  f.chart.append(cross);
  f.chart.addEventListener("pointermove", (event) => {
    const box = f.chart.getBoundingClientRect(),
      at = ((event.clientX - box.left) / box.width) * f.width;
    const rounds = [...new Set(curves.flatMap((curve) => curve.points.map((p) => p[0])))];
    const round = rounds.reduce((best, r) => (Math.abs(x(r) - at) < Math.abs(x(best) - at) ? r : best));
    cross.setAttribute("x1", x(round));
    cross.setAttribute("x2", x(round));
    cross.setAttribute("visibility", "visible");
    const rows = curves
      .map(({ m, points }) => [m, points.find((p) => p[0] === round)])
      .filter(([, p]) => p)
      .map(([m, p]) => [data.methods[m].label, p[1]]);
    showTip(
      event,
      `round ${round}`,
      [...rows, ...flat.map(({ m, y: v }) => [data.methods[m].label, v])]
        .sort((a, b) => b[1] - a[1])
        .map(([name, v]) => [name, `${percent(v)} %`]),
    );
  });
  f.chart.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  });
  holder.append(
    figures(
      ["method", "rounds", "first, %", "last, %"],
      [
        ...curves.map(({ m, points }) => [
          data.methods[m].label,
          String(last && points[points.length - 1][0]),
          percent(points[0][1]),
          percent(points[points.length - 1][1]),
        ]),
        ...flat.map(({ m, y: v }) => [
          data.methods[m].label,
          data.methods[m].reference ? "–" : "1",
          percent(v),
          percent(v),
        ]),
      ],
    ),
  );
};
