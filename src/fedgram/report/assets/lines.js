// Curves: accuracy per round, with stars for methods of one round, or accuracy by a hyper-parameter.
const drawLines = (holder, chart, panel) => {
  const series = panel ? shownSeries(panel) : [],
    lines = series.filter((one) => one.draw === "line");
  // Where ticks are given there are few points, and names too long for the margin.
  const sparse = Boolean(chart.x.ticks);
  if (!lines.length)
    return say(holder, sparse ? "Nothing to draw with these filters." : "No accuracies per round in this setting.");
  const beside = sparse ? 0 : Math.min(widestName(series) + 16, holder.clientWidth * 0.36);
  const f = frame(holder, {
    height: sparse ? 310 : 370,
    right: beside + 14,
    label: `${[chart.title, panel.title].filter(Boolean).join(", ")}: ${series.map((one) => one.told).join("; ")}`,
  });
  const places = (sparse ? chart.x.ticks : lines.flatMap((one) => one.x.map((x) => [x]))).map(([place]) => place);
  const low = sparse ? Math.min(...places) : 1,
    high = Math.max(...places, sparse ? low : 2),
    inner = [f.x0 + (sparse ? 26 : 14), f.x1 - (sparse ? 26 : 6)];
  const x = (chart.x.scale === "log" ? logarithmic : linear)(low, high, ...inner),
    heights = series.flatMap((one) => one.y),
    y = linear(...padded(heights, 0.5), f.y0, f.y1);
  axisY(f, y, chart.y);
  axisX(f, x, chart.x, ticksOf(chart, x, inner));
  for (const one of series) drawSeries(f, chart, one, x, y, sparse);
  if (sparse) holder.append(legendOf(lines));
  else {
    nameEnds(f, series, y, beside);
    followRounds(f, series, x);
  }
  holder.append(figures([chart.title, panel.title].filter(Boolean).join(", "), () => figuresOf(chart, series, sparse)));
  return null;
};
const ticksOf = (chart, x, [from, to]) => {
  const ticks = chart.x.ticks;
  if (!ticks) {
    const whole = x.ticks(8).filter((tick) => tick > 1 && Number.isInteger(tick));
    return [1, ...whole].map((tick) => [tick, String(tick)]);
  }
  const most = Math.max(2, Math.floor((to - from) / (Math.max(...ticks.map(([, text]) => widthOf(text))) + 14)) + 1);
  return ticks.filter((_, i) => i % Math.ceil(ticks.length / most) === 0);
};
const drawSeries = (f, chart, one, x, y, sparse) => {
  const shade = colour(one.look);
  if (one.draw === "line") {
    f.chart.append(
      svg("path", {
        d: `M${one.x.map((at, i) => `${x(at).toFixed(1)} ${y(one.y[i]).toFixed(1)}`).join("L")}`,
        fill: "none",
        stroke: shade,
        "stroke-width": 2,
        "stroke-linejoin": "round",
      }),
    );
    const last = one.y.length - 1;
    // Few points are marked one by one; of many, the last one says how it ends.
    for (const i of sparse ? one.x.keys() : [last]) {
      const name = sparse ? (chart.x.ticks.find(([place]) => place === one.x[i]) || [])[1] : one.x[i];
      f.chart.append(
        mark(one.look, sparse ? 4.5 : 4, {
          stroke: "var(--card)",
          transform: `translate(${x(one.x[i])} ${y(one.y[i])})`,
          ...focusable(one.label, [[`${chart.x.title} ${name}`, `${percent(one.y[i])} %`]]),
        }),
      );
    }
    return;
  }
  const [v] = one.y,
    [around] = one.half || [null];
  f.chart.append(
    svg("line", {
      x1: x(1),
      x2: f.x1,
      y1: y(v),
      y2: y(v),
      stroke: shade,
      "stroke-dasharray": one.draw === "reference" ? "5 4" : "1.5 4",
      "stroke-linecap": "round",
      opacity: 0.8,
    }),
  );
  if (one.draw === "star")
    f.chart.append(
      svg("path", {
        d: SHAPES.star(8),
        fill: shade,
        stroke: "var(--card)",
        transform: `translate(${x(1)} ${y(v)})`,
        ...focusable(one.label, [["one round", `${percent(v)}${around ? ` ± ${percent(around)}` : ""} %`]]),
      }),
    );
};
const legendOf = (lines) =>
  el(
    "p",
    { class: "copy" },
    lines.map((one) => el("span", {}, symbol(mark(one.look, 4.5)), ` ${one.label}`)),
  );
// Names at the right end, pushed apart where they would meet, each after its method's symbol.
const nameEnds = (f, series, y, beside) => {
  const names = series.map((one) => ({ ...one, at: y(one.y[one.y.length - 1]) })).sort((a, b) => a.at - b.at);
  names.forEach((name, i) => {
    name.at = Math.max(name.at, i ? names[i - 1].at + 14 : f.y1);
  });
  let lowest = f.y0 + 4;
  for (const name of [...names].reverse()) {
    name.at = Math.min(name.at, lowest);
    lowest = name.at - 14;
  }
  for (const { look, draw, label, at } of names) {
    const dash = { d: "M-5 0H5", stroke: colour(look), "stroke-width": 2, "stroke-dasharray": "3 2" };
    const sign = draw === "reference" ? svg("path", dash) : mark(look, 4);
    if (draw === "star") sign.setAttribute("d", SHAPES.star(6));
    sign.setAttribute("transform", `translate(${f.x1 + 10} ${at})`);
    f.chart.append(sign, svg("text", { class: "name", x: f.x1 + 20, y: at + 4 }, cutTo(label, beside - 16)));
  }
};
const followRounds = (f, series, x) => {
  const cross = svg("line", { class: "axis", y1: f.y1, y2: f.y0, visibility: "hidden" });
  f.chart.append(cross);
  const lines = series.filter((one) => one.draw === "line"),
    rounds = [...new Set(lines.flatMap((one) => one.x))];
  f.chart.addEventListener("pointermove", (event) => {
    const box = f.chart.getBoundingClientRect(),
      at = ((event.clientX - box.left) / box.width) * f.width;
    const round = rounds.reduce((best, r) => (Math.abs(x(r) - at) < Math.abs(x(best) - at) ? r : best));
    cross.setAttribute("x1", x(round));
    cross.setAttribute("x2", x(round));
    cross.setAttribute("visibility", "visible");
    const rows = series
      .map((one) => [one.label, one.draw === "line" ? one.y[one.x.indexOf(round)] : one.y[0]])
      .filter(([, v]) => v !== undefined)
      .sort((a, b) => b[1] - a[1]);
    showTip(
      event,
      `round ${round}`,
      rows.map(([name, v]) => [name, `${percent(v)} %`]),
    );
  });
  f.chart.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  });
};
const figuresOf = (chart, series, sparse) => {
  if (sparse)
    return [
      ["setting", ...chart.x.ticks.map(([, text]) => text)],
      series.map((one) => [
        one.label,
        ...chart.x.ticks.map(([place]) => {
          const i = one.x.indexOf(place);
          return i < 0 ? "–" : percent(one.y[i]);
        }),
      ]),
    ];
  const rounds = (one) => (one.draw === "line" ? String(one.x[one.x.length - 1]) : one.draw === "star" ? "1" : "–");
  return [
    ["method", "rounds", "first, %", "last, %"],
    series.map((one) => [one.label, rounds(one), percent(one.y[0]), percent(one.y[one.y.length - 1])]),
  ];
};
