// A matrix in colours: who has which classes, or what a method left, such as who takes how much of whom.
const ROOM_FOR_NAMES = 13;
const drawHeat = (holder, chart, panel, follow) => {
  if (!panel) return say(holder, "The results do not say who has which classes.");
  const { heat } = panel;
  if (!heat.values) return say(holder, "Left out here, because the page would be too large; it is in the results.");
  if (!heat.range) return say(holder, `Nothing to compare: no finite value${heat.own ? " off the diagonal" : ""}.`);
  const plan = planOf(holder, heat),
    setting = viewOf(panel.column).clients[panel.column],
    title = `${chart.title}, ${panel.title.replace("\n", ", ")}`;
  const canvas = el("canvas", {
    role: "img",
    "aria-label": `${title}: ${panel.told}`,
    style: `width:${plan.width}px;height:${plan.height}px;border-radius:0`,
  });
  holder.replaceChildren(canvas);
  // Which of a setting's clients a row is, where rows are clients.
  const places = heat.clients === "rows" ? heat.rows.map((name) => setting.names.indexOf(name)) : [];
  const paint = (marked) => {
    const known = marked !== null && marked !== undefined;
    paintHeat(canvas, chart, heat, plan, {
      row: known ? places.indexOf(marked) : -1,
      column: known && heat.clients === "columns" ? marked : -1,
    });
  };
  paint(null);
  const nowhere = () => {
    hideTip();
    follow(null);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(),
      j = Math.floor((((event.clientX - box.left) / box.width) * plan.width - plan.left) / plan.wide),
      i = Math.floor((((event.clientY - box.top) / box.height) * plan.height) / plan.tall);
    if (j < 0 || j >= plan.columns || i < 0 || i >= plan.rows) return nowhere();
    return follow(tellCell(event, heat, panel.column, i, j, places));
  });
  canvas.addEventListener("pointerleave", nowhere);
  holder.append(
    legendOfHeat(heat, plan),
    figures(title, () => [
      [chart.y.title, ...Array.from({ length: plan.columns }, (_, j) => columnName(heat, j))],
      heat.values.map((line, i) => [rowName(heat, i), ...line.map((v) => (v === null ? "–" : String(v)))]),
    ]),
  );
  return paint;
};
const rowName = (heat, i) => (heat.rows ? heat.rows[i] : `row ${i}`);
const columnName = (heat, j) => (heat.columns ? heat.columns[j] : `column ${j}`);

// Sizes: cells are squares, except where the columns are a setting's clients, which take the whole width.
const planOf = (holder, heat) => {
  const rows = heat.values.length,
    columns = heat.values[0].length,
    room = Math.max(260, holder.clientWidth),
    title = 18;
  if (heat.clients === "columns") {
    const left = title + Math.min(110, Math.ceil(Math.max(...heat.rows.map(widthOf))) + 14),
      tall = rows > 40 ? 4 : rows > 20 ? 10 : 19,
      wide = (room - left) / columns;
    return { rows, columns, left, bottom: 34, wide, tall, width: room, height: rows * tall + 34, named: false };
  }
  const widest = heat.rows ? Math.min(110, Math.ceil(Math.max(...heat.rows.map(widthOf)))) + 10 : 0,
    beside = (left) => Math.min(40, (Math.min(600, room) - left) / Math.max(rows, columns));
  const named = Boolean(heat.rows) && beside(widest + title) >= ROOM_FOR_NAMES,
    left = title + (named ? widest : 34),
    bottom = named ? widest + 18 : 34,
    free = beside(left),
    size = free > 4 ? Math.floor(free) : free;
  const [width, height] = [left + columns * size, rows * size + bottom];
  return { rows, columns, left, bottom, wide: size, tall: size, width, height, named };
};
const shadeOf = (heat, v) => {
  const [low, high] = heat.range;
  if (heat.shade === "root") return v ? 0.1 + 0.9 * Math.sqrt(v / high) : 0;
  return high > low ? Math.min(1, Math.max(0, (v - low) / (high - low))) : +(v > low);
};
const paintHeat = (canvas, chart, heat, plan, marked) => {
  const { left, wide, tall, width, height, rows, columns } = plan,
    ratio = devicePixelRatio || 1,
    gap = Math.min(wide, tall) > 5 ? 1 : 0,
    [low, high] = heat.range;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d"),
    style = getComputedStyle(document.documentElement),
    [warm, hair, soft, ink, paper] = ["--heat", "--hair", "--soft", "--ink", "--card"].map((key) =>
      style.getPropertyValue(key),
    );
  pen.scale(ratio, ratio);
  for (const [i, line] of heat.values.entries())
    for (const [j, v] of line.entries()) {
      if (v === null) continue;
      const box = [left + j * wide, i * tall, Math.max(wide - gap, 0.6), tall - gap];
      pen.fillStyle = hair;
      pen.fillRect(...box);
      pen.fillStyle = `rgba(${warm}, ${shadeOf(heat, v)})`;
      pen.fillRect(...box);
      if (wide < 8 || (v >= low && v <= high)) continue;
      pen.fillStyle = v > high ? paper : ink;
      pen.beginPath();
      pen.arc(box[0] + box[2] / 2, box[1] + box[3] / 2, Math.min(3, wide / 6), 0, 2 * Math.PI);
      pen.fill();
    }
  pen.fillStyle = soft;
  nameHeat(pen, chart, heat, plan);
  pen.strokeStyle = ink;
  pen.lineWidth = 1.5;
  if (marked.row >= 0) pen.strokeRect(left + 0.75, marked.row * tall, columns * wide - 1.5 - gap, tall);
  if (marked.column >= 0) pen.strokeRect(left + marked.column * wide - 1, 0.75, Math.max(wide, 2) + 1, rows * tall - 1);
};
const nameHeat = (pen, chart, heat, { left, bottom, wide, tall, height, rows, columns, named }) => {
  const numbers = (count, size) =>
    niceTicks(0, count - 1 || 1, Math.max(2, Math.min(12, (count * size) / 60))).filter(
      (v) => Number.isInteger(v) && v < count,
    );
  const classes = heat.clients === "columns";
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const lines = classes
    ? [...Array(rows).keys()].filter((i) => tall > 8 || i % 10 === 0)
    : named
      ? heat.rows.keys()
      : numbers(rows, tall);
  for (const i of lines)
    pen.fillText(classes || named ? cutTo(heat.rows[i], left - 26) : String(i), left - 8, (i + 0.5) * tall);
  for (const j of named ? heat.columns.keys() : numbers(columns, wide)) {
    pen.save();
    pen.translate(left + (j + 0.5) * wide, rows * tall + (named ? 6 : 11));
    if (named) pen.rotate(-Math.PI / 2);
    else pen.textAlign = "center";
    pen.fillText(named ? cutTo(heat.columns[j], bottom - 26) : String(j), 0, 0);
    pen.restore();
  }
  pen.textAlign = "center";
  pen.fillText(chart.x.title, left + (columns * wide) / 2, height - 7);
  pen.save();
  pen.translate(8, (rows * tall) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(chart.y.title, 0, 0);
  pen.restore();
};
// Tell of the cell that is pointed at; returns which of the setting's clients it is about, if any.
const tellCell = (event, heat, c, i, j, places) => {
  const v = heat.values[i][j];
  if (heat.clients === "columns") {
    const count = [`class ${heat.rows[i]}`, `${v.toLocaleString("en")} samples`];
    showTip(event, nameOf(c, j), [count, ...clientRows(c, j, null)]);
    return j;
  }
  const whose = heat.own ? (i === j ? "of itself" : `of ${heat.columns[j]}`) : columnName(heat, j);
  showTip(event, rowName(heat, i), [[whose, v === null ? "not finite" : String(v)]]);
  return places[i] >= 0 ? places[i] : null;
};
const legendOfHeat = (heat, plan) => {
  const [low, high] = heat.range,
    own = heat.own ? heat.values.map((line, i) => line[i]).filter((v) => v !== null) : [],
    beyond = own.some((v) => v > high || v < low),
    span = `${significant(Math.min(...own))} to ${significant(Math.max(...own))}`;
  const what = heat.own ? " off the diagonal" : heat.clients ? " training samples" : "";
  return el(
    "p",
    { class: "copy" },
    el(
      "span",
      {},
      `${significant(low)} `,
      el("span", { class: "ramp", role: "img", "aria-label": "to" }),
      ` ${significant(high)}${what}`,
    ),
    beyond
      ? el("span", {}, `The diagonal${plan.wide >= 8 ? " (dots)" : ""} goes beyond the scale: it is ${span}.`)
      : null,
  );
};
