// Scales, ticks and the frame that charts share.
const niceTicks = (low, high, count) => {
  const rough = (high - low) / count,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++)
    ticks.push(+(i * step).toPrecision(12));
  return ticks;
};
const linear = (low, high, from, to) =>
  Object.assign((v) => from + ((v - low) / (high - low || 1)) * (to - from), { ticks: (n) => niceTicks(low, high, n) });
const logarithmic = (low, high, from, to) =>
  Object.assign((v) => from + (Math.log(v / low) / Math.log(high / low || 2)) * (to - from), {
    // Powers of ten, and 2 and 5 between them where there is room.
    ticks: (most) => {
      const powers = Array.from(
        { length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 },
        (_, i) => 10 ** (Math.floor(Math.log10(low)) + i),
      );
      const steps = [[1, 2, 5], [1, 3], [1]].map((factors) =>
        powers.flatMap((power) => factors.map((k) => +(k * power).toPrecision(3))).filter((v) => v >= low && v <= high),
      );
      const fitting = steps.find((ticks) => ticks.length <= most) || steps[2];
      if (fitting.length < 2) return niceTicks(low, high, 3).filter((tick) => tick > 0);
      return fitting.filter((_, i) => i % Math.ceil(fitting.length / most) === 0);
    },
  });
const padded = (found, least, most = 100) => {
  const low = Math.min(...found),
    high = Math.max(...found);
  const gap = Math.max((high - low) * 0.12, least);
  return [low < 0 ? low - gap : Math.max(0, low - gap), Math.min(most, high + gap)];
};
// Accuracies keep half a point of room; what may be of any size, a hundredth of itself.
const paddedFor = (axis, found) =>
  axis.unit === "percent" ? padded(found, 0.5) : padded(found, Math.max(...found.map(Math.abs)) * 0.01, Infinity);

// A chart with its frame and both axes: a role and a description for those who do not see it, and room to draw.
const frame = (holder, { height, left = 62, right = 14, top = 12, bottom = 44, label }) => {
  const width = Math.max(260, holder.clientWidth);
  const chart = svg("svg", {
    class: "chart",
    role: "group",
    viewBox: `0 0 ${width} ${height}`,
    height,
    "aria-label": label,
  });
  holder.replaceChildren(chart);
  return { chart, width, height, x0: left, x1: width - right, y0: height - bottom, y1: top };
};
const titleX = (f, title) =>
  f.chart.append(
    svg("text", { class: "title", x: (f.x0 + f.x1) / 2, y: f.height - 5, "text-anchor": "middle" }, title),
  );
const titleY = (f, title) => {
  const middle = (f.y0 + f.y1) / 2;
  f.chart.append(
    svg(
      "text",
      { class: "title", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` },
      cutTo(title, f.y0 - f.y1 + 30),
    ),
  );
};
const axisY = (f, scale, axis) => {
  for (const tick of scale.ticks(Math.max(3, Math.round((f.y0 - f.y1) / 45)))) {
    f.chart.append(
      svg("line", { class: "rule", x1: f.x0, x2: f.x1, y1: scale(tick), y2: scale(tick) }),
      svg("text", { x: f.x0 - 8, y: scale(tick) + 4, "text-anchor": "end" }, WRITE[axis.unit](tick)),
    );
  }
  titleY(f, axis.title);
};
// Ticks are pairs of a place and a text: those of the axis, or round ones.
const axisX = (f, scale, axis, ticks = roundTicks(f, scale, axis)) => {
  f.chart.append(svg("line", { class: "axis", x1: f.x0, x2: f.x1, y1: f.y0, y2: f.y0 }));
  for (const [place, text] of ticks) {
    f.chart.append(
      svg("line", { class: "axis", x1: scale(place), x2: scale(place), y1: f.y0, y2: f.y0 + 4 }),
      svg("text", { x: scale(place), y: f.y0 + 17, "text-anchor": "middle" }, text),
    );
  }
  titleX(f, axis.title + (axis.scale === "log" ? " (logarithmic)" : ""));
};
const roundTicks = (f, scale, axis) =>
  scale.ticks(Math.max(3, Math.round((f.x1 - f.x0) / 80))).map((tick) => [tick, WRITE[axis.unit](tick)]);
