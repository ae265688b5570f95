// Confidence against accuracy: a mark for each range of confidence, a line for each method.
const drawReliability = (holder, chart, panel) => {
  const series = panel ? shownSeries(panel) : [];
  if (!series.length) return say(holder, "No probabilities in this setting.");
  const f = frame(holder, {
    height: 340,
    label: `${[chart.title, panel.title].filter(Boolean).join(", ")}: ${series.map((one) => one.told).join("; ")}`,
  });
  const low = Math.floor(Math.min(...series.flatMap((one) => [...one.x, ...one.y])) / 10) * 10,
    x = linear(low, 100, f.x0, f.x1 - 8),
    y = linear(low, 100, f.y0, f.y1 + 4);
  axisY(f, y, chart.y);
  axisX(f, x, chart.x);
  f.chart.append(
    svg("line", {
      stroke: "var(--soft)",
      x1: x(low),
      x2: x(100),
      y1: y(low),
      y2: y(100),
      "stroke-dasharray": "5 4",
    }),
  );
  for (const one of series) {
    const places = one.x.map((v, i) => [x(v), y(one.y[i])]),
      most = Math.max(...one.facts.samples);
    f.chart.append(
      svg("path", {
        d: `M${places.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}`,
        fill: "none",
        stroke: colour(one.look),
        "stroke-width": 1.6,
        opacity: 0.7,
      }),
    );
    places.forEach(([a, b], i) => {
      const rows = [
        ["confidence", said(one.x[i], "percent")],
        ["accuracy", said(one.y[i], "percent")],
        ["samples", one.facts.samples[i].toLocaleString("en")],
      ];
      f.chart.append(
        mark(one.look, 2.5 + 4.5 * Math.sqrt(one.facts.samples[i] / most), {
          stroke: "var(--card)",
          transform: `translate(${a} ${b})`,
          ...focusable(one.label, rows),
        }),
      );
    });
  }
  holder.append(
    legendOf(series),
    figures([chart.title, panel.title].filter(Boolean).join(", "), () => [
      ["method", "confidence, %", "accuracy, %", "samples"],
      series.flatMap((one) =>
        one.x.map((v, i) => [one.label, short(v, "percent"), short(one.y[i], "percent"), String(one.facts.samples[i])]),
      ),
    ]),
  );
  return null;
};
