// Curves: figures per round or by cost, with stars for methods of one round, or by a hyper-parameter.
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
  // Rounds are counted from one, also where there is only one of them.
  const counted = !sparse && chart.x.unit === "number",
    places = sparse ? chart.x.ticks.map(([place]) => place) : series.flatMap((one) => one.x || []);
  const low = Math.min(...places),
    high = Math.max(...places, counted ? 2 : low),
    inner = [f.x0 + (sparse ? 26 : 14), f.x1 - (sparse ? 26 : 6)];
  const x = (chart.x.scale === "log" ? logarithmic : linear)(low, high, ...inner),
    heights = series.flatMap((one) => (one.draw === "line" ? [...one.y, ...edge(one, 1), ...edge(one, -1)] : one.y)),
    y = linear(...paddedFor(chart.y, heights), f.y0, f.y1);
  axisY(f, y, chart.y);
  axisX(f, x, chart.x, sparse || counted ? ticksOf(chart, x, inner) : undefined);
  for (const one of series) drawSeries(f, chart, one, x, y, sparse);
  if (sparse) holder.append(legendOf(lines));
  else {
    nameEnds(f, series, y, beside);
    followRounds(f, chart, series, x);
  }
  holder.append(figures([chart.title, panel.title].filter(Boolean).join(", "), () => figuresOf(chart, series, sparse)));
  return null;
};
// A band of ± the standard deviation over seeds, where there are several.
const BAND = " A band around a line is ± the standard deviation over seeds.";
const isBanded = (panel) => (panel?.series || []).some((one) => one.draw === "line" && one.half);
const edge = (one, side) => one.y.map((v, i) => v + side * (one.half?.[i] || 0));
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
    if (one.half) {
      const points = (side) => edge(one, side).map((v, i) => `${x(one.x[i]).toFixed(1)} ${y(v).toFixed(1)}`);
      const outline = [...points(1), ...points(-1).reverse()].join("L");
      f.chart.append(svg("path", { d: `M${outline}Z`, fill: shade, opacity: 0.15 }));
    }
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
      const name = sparse
        ? (chart.x.ticks.find(([place]) => place === one.x[i]) || [])[1]
        : WRITE[chart.x.unit](one.x[i]);
      f.chart.append(
        mark(one.look, sparse ? 4.5 : 4, {
          stroke: "var(--card)",
          transform: `translate(${x(one.x[i])} ${y(one.y[i])})`,
          ...focusable(one.label, [[`${chart.x.title} ${name}`, told(one.y[i], one.half?.[i])]]),
        }),
      );
    }
    return;
  }
  const [v] = one.y,
    [around] = one.half || [null],
    begins = one.draw === "star" ? x(one.x[0]) : f.x0;
  f.chart.append(
    svg("line", {
      x1: begins,
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
        transform: `translate(${begins} ${y(v)})`,
        ...focusable(one.label, [[spent(chart, one), told(v, around)]]),
      }),
    );
};
const spent = (chart, one) => (chart.x.unit === "number" ? "one round" : WRITE[chart.x.unit](one.x[0]));
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
const followRounds = (f, chart, series, x) => {
  const cross = svg("line", { class: "axis", y1: f.y1, y2: f.y0, visibility: "hidden" });
  f.chart.append(cross);
  const counted = chart.x.unit === "number",
    lines = series.filter((one) => one.draw === "line"),
    places = [...new Set(lines.flatMap((one) => one.x))];
  // Methods do not spend the same at the same time: by costs, a line has what it had reached until then.
  const valueAt = (one, at) => {
    if (one.draw === "reference" || (counted && one.draw === "star")) return one.y[0];
    return one.y[counted ? one.x.indexOf(at) : one.x.findLastIndex((place) => place <= at)];
  };
  f.chart.addEventListener("pointermove", (event) => {
    const box = f.chart.getBoundingClientRect(),
      at = ((event.clientX - box.left) / box.width) * f.width;
    const place = places.reduce((best, r) => (Math.abs(x(r) - at) < Math.abs(x(best) - at) ? r : best));
    cross.setAttribute("x1", x(place));
    cross.setAttribute("x2", x(place));
    cross.setAttribute("visibility", "visible");
    const rows = series
      .map((one) => [one.label, valueAt(one, place)])
      .filter(([, v]) => v !== undefined)
      .sort((a, b) => compare(a[1], b[1]));
    showTip(
      event,
      counted ? `round ${place}` : `${WRITE[chart.x.unit](place)}`,
      rows.map(([name, v]) => [name, told(v)]),
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
          return i < 0 ? "–" : figure(one.y[i]);
        }),
      ]),
    ];
  const whole = (one) => (one.draw === "reference" ? "–" : WRITE[chart.x.unit](one.x[one.x.length - 1]));
  return [
    ["method", chart.x.unit === "number" ? "rounds" : chart.x.title, "first, %", "last, %"],
    series.map((one) => [one.label, whole(one), figure(one.y[0]), figure(one.y[one.y.length - 1])]),
  ];
};
