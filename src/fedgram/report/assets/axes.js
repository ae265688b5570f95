// Scales, ticks and the frame that charts share.
const dark = () => document.documentElement.dataset.theme === "dark";
const colour = (m) => data.methods[m].look[dark() ? 1 : 0];
const palette = (i) => data.palette[i % data.palette.length][dark() ? 1 : 0];
const SHAPES = {
  o: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  s: (r) => `M${-r * 0.88} ${-r * 0.88}h${r * 1.76}v${r * 1.76}h${-r * 1.76}z`,
  "^": (r) => `M0 ${-r * 1.15}L${r * 1.1} ${r * 0.85}H${-r * 1.1}z`,
  v: (r) => `M0 ${r * 1.15}L${r * 1.1} ${-r * 0.85}H${-r * 1.1}z`,
  D: (r) => `M0 ${-r * 1.25}L${r * 1.25} 0L0 ${r * 1.25}L${-r * 1.25} 0z`,
  P: (r) =>
    `M${-r * 0.4} ${-r * 1.1}h${r * 0.8}v${r * 0.7}h${r * 0.7}v${r * 0.8}h${-r * 0.7}v${r * 0.7}h${-r * 0.8}v${-r * 0.7}h${-r * 0.7}v${-r * 0.8}h${r * 0.7}z`,
  X: (r) =>
    `M0 ${-r * 0.45}L${r * 0.65} ${-r * 1.1}L${r * 1.1} ${-r * 0.65}L${r * 0.45} 0L${r * 1.1} ${r * 0.65}L${r * 0.65} ${r * 1.1}L0 ${r * 0.45}L${-r * 0.65} ${r * 1.1}L${-r * 1.1} ${r * 0.65}L${-r * 0.45} 0L${-r * 1.1} ${-r * 0.65}L${-r * 0.65} ${-r * 1.1}z`,
  star: (r) =>
    `M${Array.from({ length: 10 }, (_, i) => {
      const angle = (Math.PI * i) / 5 - Math.PI / 2,
        reach = i % 2 ? r * 0.45 : r;
      return `${(reach * Math.cos(angle)).toFixed(2)} ${(reach * Math.sin(angle)).toFixed(2)}`;
    }).join("L")}z`,
};
const mark = (m, radius, attributes) =>
  svg("path", { d: SHAPES[data.methods[m].look[2]](radius), fill: colour(m), ...attributes });
const badge = (m) =>
  svg(
    "svg",
    { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" },
    data.methods[m].reference
      ? svg("path", { d: "M-6 0H6", stroke: colour(m), "stroke-width": 2, "stroke-dasharray": "3 2" })
      : mark(m, 4.6),
  );

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
      return fitting.filter((_, i) => i % Math.ceil(fitting.length / most) === 0);
    },
  });
const padded = (found, least, most = 100) => {
  let low = Math.min(...found),
    high = Math.max(...found);
  const gap = Math.max((high - low) * 0.12, least);
  return [Math.max(0, low - gap), Math.min(most, high + gap)];
};

// A chart with a frame: a role, a title and a description for those who do not see it, and room to draw.
const frame = (holder, { height, left = 46, right = 14, top = 12, bottom = 42, title, description }) => {
  const width = Math.max(260, holder.clientWidth);
  const chart = svg("svg", {
    class: "chart",
    role: "img",
    viewBox: `0 0 ${width} ${height}`,
    height,
    "aria-label": `${title}. ${description}`,
  });
  chart.append(svg("title", {}, title), svg("desc", {}, description));
  holder.replaceChildren(chart);
  return { chart, width, height, x0: left, x1: width - right, y0: height - bottom, y1: top };
};
const axisY = (f, scale, format = String) => {
  for (const tick of scale.ticks(Math.max(3, Math.round((f.y0 - f.y1) / 45)))) {
    f.chart.append(
      svg("line", { class: "rule", x1: f.x0, x2: f.x1, y1: scale(tick), y2: scale(tick) }),
      svg("text", { x: f.x0 - 8, y: scale(tick) + 4, "text-anchor": "end" }, format(tick)),
    );
  }
};
const axisX = (f, scale, format, caption, ticks = scale.ticks(Math.max(3, Math.round((f.x1 - f.x0) / 80)))) => {
  f.chart.append(svg("line", { class: "axis", x1: f.x0, x2: f.x1, y1: f.y0, y2: f.y0 }));
  for (const tick of ticks) {
    f.chart.append(
      svg("line", { class: "axis", x1: scale(tick), x2: scale(tick), y1: f.y0, y2: f.y0 + 4 }),
      svg("text", { x: scale(tick), y: f.y0 + 17, "text-anchor": "middle" }, format(tick)),
    );
  }
  f.chart.append(svg("text", { x: (f.x0 + f.x1) / 2, y: f.height - 4, "text-anchor": "middle" }, caption));
};
// How wide a name is drawn, and a name cut to a width.
const ruler = document.createElement("canvas").getContext("2d");
const widthOf = (text) => {
  ruler.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
};
const cutTo = (text, width) => {
  if (widthOf(text) <= width) return text;
  let length = text.length;
  while (length > 1 && widthOf(`${text.slice(0, length)}…`) > width) length--;
  return `${text.slice(0, length)}…`;
};
const widestName = (methods) => Math.ceil(Math.max(...methods.map((m) => widthOf(data.methods[m].label))));
// Names beside points, each in the first place where it covers nothing.
const placeNames = (f, points, covered) => {
  const taken = [...covered, ...points.map(({ x, y }) => [x - 7, y - 7, x + 7, y + 7])];
  for (const { x, y, name } of points) {
    const text = svg("text", { class: "name halo" }, name);
    f.chart.append(text);
    const w = text.getComputedTextLength() + 4,
      spots = [
        [x + 11, y - 8],
        [x - 11 - w, y - 8],
        [x - w / 2, y - 26],
        [x - w / 2, y + 10],
        [x + 9, y - 22],
        [x + 9, y + 6],
        [x - 9 - w, y - 22],
        [x - 9 - w, y + 6],
      ];
    const free = spots.find(
      ([a, b]) =>
        a >= f.x0 - 30 &&
        a + w <= f.x1 + 12 &&
        b >= 0 &&
        b + 16 <= f.y0 &&
        taken.every(([l, t, r, u]) => a + w < l || a > r || b + 16 < t || b > u),
    );
    if (!free) {
      text.remove();
      continue;
    }
    taken.push([free[0], free[1], free[0] + w, free[1] + 16]);
    text.setAttribute("x", free[0] + 2);
    text.setAttribute("y", free[1] + 12.5);
  }
};
const plainTable = (heads, rows, look = "scroll") =>
  el(
    "div",
    { class: look },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el("th", { scope: "col" }, head)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((text) => el("td", {}, text)),
          ),
        ),
      ),
    ),
  );

const figures = (heads, rows) => el("details", {}, el("summary", {}, "Figures as a table"), plainTable(heads, rows));
const card = (title, note, ...extra) => {
  const holder = el("div", { class: "holder" });
  return {
    holder,
    node: el(
      "section",
      { class: "card" },
      el("div", { class: "head" }, el("h3", {}, title), ...extra),
      note ? el("p", { class: "note" }, note) : null,
      holder,
    ),
  };
};
