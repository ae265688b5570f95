// What stands for a method in every chart: its colour, its shape and its name.
const dark = () => document.documentElement.dataset.theme === "dark";
const colour = (look) => look[dark() ? 1 : 0];
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
const mark = (look, radius, attributes) =>
  svg("path", { d: SHAPES[look[2]](radius), fill: colour(look), ...attributes });
const symbol = (drawn) => svg("svg", { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" }, drawn);
const badge = (m) => {
  const { look, reference } = data.methods[m];
  return symbol(
    reference
      ? svg("path", { d: "M-6 0H6", stroke: colour(look), "stroke-width": 2, "stroke-dasharray": "3 2" })
      : mark(look, 4.6),
  );
};
// An interval: a line with short ends, behind its mark.
const whisker = (look, x, low, high) =>
  svg("path", {
    d: `M${x} ${low}V${high}M${x - 4} ${low}h8M${x - 4} ${high}h8`,
    stroke: colour(look),
    "stroke-width": 1.4,
    opacity: 0.75,
  });

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
const widestName = (series) => Math.ceil(Math.max(...series.map(({ label }) => widthOf(label))));
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
        a >= f.x0 - 4 &&
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
