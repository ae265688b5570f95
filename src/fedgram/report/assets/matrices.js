// A matrix that a method left with its result, such as who takes how much of whom, in the order of the clients.
const ROOM_FOR_NAMES = 13;
const drawMatrix = (holder, c, { m, name, clients, values, range }, follow) => {
  const say = (text) => holder.replaceChildren(el("p", { class: "empty" }, text));
  if (!values) return say("Left out here, because the page would be too large; it is in the results.");
  if (!range) return say(`Nothing to compare: no finite value${clients ? " off the diagonal" : ""}.`);
  const rows = values.length,
    columns = values[0].length,
    [low, high] = range;
  const shade = (v) => (high > low ? Math.min(1, Math.max(0, (v - low) / (high - low))) : +(v > low));
  const known = (data.spreads[c] && data.spreads[c].names) || [],
    places = (clients || []).map((client) => known.indexOf(client));
  const rowName = (i) => (clients ? clients[i] : `row ${i}`),
    columnName = (j) => (clients ? clients[j] : `column ${j}`);
  const own = clients ? values.map((line, i) => line[i]).filter((v) => v !== null) : [],
    beyond = own.some((v) => v > high || v < low),
    span = (found) => `${significant(Math.min(...found))} to ${significant(Math.max(...found))}`;
  const widest = clients ? Math.min(110, Math.ceil(Math.max(...clients.map(widthOf)))) + 10 : 0;
  const room = Math.min(600, Math.max(260, holder.clientWidth)),
    sizeBeside = (left) => Math.min(40, (room - left) / Math.max(rows, columns));
  const named = clients && sizeBeside(widest) >= ROOM_FOR_NAMES,
    left = named ? widest : 34,
    bottom = named ? widest : 34;
  const size = sizeBeside(left) > 4 ? Math.floor(sizeBeside(left)) : sizeBeside(left),
    gap = size > 5 ? 1 : 0,
    dotted = size >= 8;
  const width = left + columns * size,
    height = rows * size + bottom;
  const canvas = el("canvas", {
    role: "img",
    "aria-label":
      `${titleOf(name)} of ${data.methods[m].label}, ${where(c)}: ` +
      (clients
        ? `${rows} clients; of others ${span(range)}` + (own.length ? `, of themselves ${span(own)}` : "")
        : `${rows} rows by ${columns} columns, ${span(range)}`),
    style: `width:${width}px;height:${height}px;border-radius:0`,
  });
  holder.replaceChildren(canvas);
  const numbers = (count) =>
    niceTicks(0, count - 1 || 1, Math.max(2, Math.min(12, (count * size) / 60))).filter(
      (v) => Number.isInteger(v) && v < count,
    );
  const paint = (marked) => {
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d"),
      style = getComputedStyle(document.documentElement),
      [heat, hair, soft, ink, paper] = ["--heat", "--hair", "--soft", "--ink", "--card"].map((key) =>
        style.getPropertyValue(key),
      );
    pen.scale(ratio, ratio);
    values.forEach((line, i) =>
      line.forEach((v, j) => {
        const [x, y] = [left + j * size, i * size];
        if (v === null) return;
        pen.fillStyle = hair;
        pen.fillRect(x, y, size - gap, size - gap);
        pen.fillStyle = `rgba(${heat}, ${shade(v)})`;
        pen.fillRect(x, y, size - gap, size - gap);
        if (!dotted || (v >= low && v <= high)) return;
        pen.fillStyle = v > high ? paper : ink;
        pen.beginPath();
        pen.arc(x + (size - gap) / 2, y + (size - gap) / 2, Math.min(3, size / 6), 0, 2 * Math.PI);
        pen.fill();
      }),
    );
    pen.fillStyle = soft;
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const i of named ? clients.keys() : numbers(rows))
      pen.fillText(named ? cutTo(clients[i], left - 8) : String(i), left - 8, (i + 0.5) * size);
    for (const j of named ? clients.keys() : numbers(columns)) {
      pen.save();
      pen.translate(left + (j + 0.5) * size, rows * size + (named ? 6 : 11));
      if (named) pen.rotate(-Math.PI / 2);
      else pen.textAlign = "center";
      pen.fillText(named ? cutTo(clients[j], bottom - 8) : String(j), 0, 0);
      pen.restore();
    }
    pen.textAlign = "center";
    if (!named) pen.fillText(clients ? "client" : "column", left + (columns * size) / 2, height - 7);
    const at = marked === null || marked === undefined ? -1 : places.indexOf(marked);
    if (at < 0) return;
    pen.strokeStyle = ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(left + 0.75, at * size, columns * size - 1.5 - gap, size);
  };
  paint(null);
  const nowhere = () => {
    hideTip();
    follow(null);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(),
      j = Math.floor(((event.clientX - box.left) / box.width) * (width / size) - left / size),
      i = Math.floor(((event.clientY - box.top) / box.height) * (height / size));
    if (j < 0 || j >= columns || i < 0 || i >= rows) return nowhere();
    const value = values[i][j] === null ? "not finite" : String(values[i][j]);
    const whose = clients ? (i === j ? "of itself" : `of ${clients[j]}`) : columnName(j);
    showTip(event, rowName(i), [[whose, value]]);
    follow(places[i] >= 0 ? places[i] : null);
  });
  canvas.addEventListener("pointerleave", nowhere);
  // As many as forty thousand cells: made when somebody wants to read them.
  const table = el(
    "details",
    {
      on: {
        toggle: () => {
          if (table.querySelector("table")) return;
          const lines = values.map((line, i) => [rowName(i), ...line.map((v) => (v === null ? "–" : String(v)))]);
          table.append(plainTable(["", ...values[0].map((_, j) => columnName(j))], lines));
        },
      },
    },
    el("summary", {}, "Figures as a table"),
  );
  holder.append(
    el(
      "p",
      { class: "copy" },
      el(
        "span",
        {},
        `${significant(low)} `,
        el("span", { class: "ramp", role: "img", "aria-label": "to" }),
        ` ${significant(high)}${clients ? " off the diagonal" : ""}`,
      ),
      beyond
        ? el("span", {}, `The diagonal${dotted ? " (dots)" : ""} goes beyond the scale: it is ${span(own)}.`)
        : null,
    ),
    table,
  );
  return paint;
};
const titleOf = (name) => name.charAt(0).toUpperCase() + name.slice(1);
const matrixCards = (c) =>
  data.matrices
    .filter((matrix) => matrix.c === c && shownMethods().includes(matrix.m))
    .map((matrix) => ({
      matrix,
      ...card(
        titleOf(matrix.name),
        (matrix.clients ? "Each row is a client; its columns tell how much every client counts for it. " : "") +
          `Seed ${data.columns[c].seed}.`,
        el("span", { class: "method" }, badge(matrix.m), data.methods[matrix.m].label),
      ),
    }));
