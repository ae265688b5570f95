// One setting, client by client: how accuracies spread, and who has which classes. A client is followed through both.
const nameOf = (c, k) => {
  const spread = data.spreads[c];
  return spread && spread.names && spread.names[k] ? spread.names[k] : `client ${k}`;
};
const share = (bytesOf, k) => (Array.isArray(bytesOf) ? bytesOf[k] : bytesOf);
const clientRows = (c, k, detail) => {
  const spread = data.spreads[c],
    tested = data.tested[c];
  const rows = [];
  if (detail) rows.push(["accuracy", `${(detail.accuracy[k] / 10).toFixed(1)} %`]);
  if (tested && tested[k] !== undefined) rows.push(["test samples", tested[k].toLocaleString("en")]);
  if (spread && spread.counts[k]) {
    const counts = spread.counts[k];
    rows.push(
      ["training samples", counts.reduce((sum, n) => sum + n, 0).toLocaleString("en")],
      ["classes", String(counts.filter(Boolean).length)],
    );
  }
  if (detail && share(detail.up, k) !== null && share(detail.up, k) !== undefined)
    rows.push(["sent up", bytes(share(detail.up, k))], ["sent down", bytes(share(detail.down, k))]);
  return rows;
};
// The same small shift for the same client every time, so that dots do not jump.
const jitter = (k) => ((k * 0.618034) % 1) - 0.5;
const quantile = (sorted, q) => {
  const at = q * (sorted.length - 1),
    low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
};

const drawClients = (holder, c, follow) => {
  const rows = shownMethods()
    .map((m) => ({ m, detail: data.details.find((d) => d.m === m && d.c === c) }))
    .filter((row) => row.detail && row.detail.accuracy.some((v) => v !== null));
  if (!rows.length)
    return holder.replaceChildren(el("p", { class: "empty" }, "No accuracies of single clients in this setting."));
  const labelled = holder.clientWidth > 560,
    pitch = labelled ? 38 : 50;
  const beside = Math.min(widestName(rows.map(({ m }) => m)), 240),
    left = labelled ? beside + 20 : 12;
  for (const row of rows) {
    row.sorted = row.detail.accuracy
      .filter((v) => v !== null)
      .map((v) => v / 10)
      .sort((a, b) => a - b);
    row.middle = mean(row.sorted);
  }
  const f = frame(holder, {
    height: rows.length * pitch + 52,
    left,
    bottom: 42,
    top: 6,
    title: `Accuracies of single clients, ${where(c)}`,
    description: rows
      .map(
        ({ m, sorted, middle }) =>
          `${data.methods[m].label}: lowest ${sorted[0].toFixed(1)}, median ${quantile(sorted, 0.5).toFixed(1)}, mean ${middle.toFixed(1)}, highest ${sorted[sorted.length - 1].toFixed(1)} %`,
      )
      .join("; "),
  });
  const low = Math.min(...rows.map((row) => row.sorted[0]));
  const x = linear(Math.max(0, Math.floor((low - 4) / 10) * 10), 100, f.x0, f.x1 - 6);
  for (const tick of x.ticks(6))
    f.chart.append(svg("line", { class: "rule", x1: x(tick), x2: x(tick), y1: f.y1, y2: f.y0 }));
  axisX(f, x, String, "accuracy of a client, %");
  const dots = [];
  rows.forEach((row, i) => {
    const at = f.y1 + i * pitch + pitch / 2 + (labelled ? 0 : 7),
      tall = labelled ? 20 : 18;
    f.chart.append(
      labelled
        ? svg(
            "text",
            { class: "name", x: left - 12, y: at + 4, "text-anchor": "end" },
            cutTo(data.methods[row.m].label, beside),
          )
        : svg("text", { class: "name", x: left, y: at - 15 }, data.methods[row.m].label),
    );
    const [a, b, half] = [0.25, 0.75, 0.5].map((q) => x(quantile(row.sorted, q)));
    f.chart.append(
      svg("rect", {
        x: a,
        y: at - tall / 2,
        width: Math.max(1, b - a),
        height: tall,
        rx: 4,
        fill: colour(row.m),
        opacity: 0.18,
      }),
    );
    let path = "";
    row.detail.accuracy.forEach((v, k) => {
      if (v === null) return;
      const dot = { m: row.m, k, x: x(v / 10), y: at + jitter(k) * tall * 0.9, detail: row.detail };
      dots.push(dot);
      path += `M${dot.x.toFixed(1)} ${dot.y.toFixed(1)}h0`;
    });
    const dense = row.sorted.length > 250;
    f.chart.append(
      svg("path", {
        d: path,
        stroke: colour(row.m),
        "stroke-width": dense ? 3 : 5,
        "stroke-linecap": "round",
        opacity: dense ? 0.4 : 0.6,
      }),
      svg("line", {
        x1: half,
        x2: half,
        y1: at - tall / 2,
        y2: at + tall / 2,
        stroke: colour(row.m),
        "stroke-width": 2.5,
      }),
      svg("path", {
        d: SHAPES.D(4),
        transform: `translate(${x(row.middle)} ${at})`,
        fill: "var(--card)",
        stroke: colour(row.m),
        "stroke-width": 1.8,
      }),
    );
  });
  const rings = svg("g", {});
  f.chart.append(rings);
  const ring = (k) =>
    rings.replaceChildren(
      ...dots
        .filter((dot) => dot.k === k)
        .map((dot) =>
          svg("circle", {
            cx: dot.x,
            cy: dot.y,
            r: 5.5,
            fill: colour(dot.m),
            stroke: "var(--ink)",
            "stroke-width": 1.6,
          }),
        ),
    );
  f.chart.addEventListener("pointermove", (event) => {
    const box = f.chart.getBoundingClientRect(),
      px = ((event.clientX - box.left) / box.width) * f.width,
      py = ((event.clientY - box.top) / box.height) * f.height;
    let best = null,
      least = 400;
    for (const dot of dots) {
      const far = (dot.x - px) ** 2 + (dot.y - py) ** 2;
      if (far < least) [best, least] = [dot, far];
    }
    if (!best) {
      hideTip();
      return follow(null);
    }
    showTip(event, `${nameOf(c, best.k)} · ${data.methods[best.m].label}`, clientRows(c, best.k, best.detail));
    follow(best.k);
  });
  f.chart.addEventListener("pointerleave", () => {
    hideTip();
    follow(null);
  });
  holder.append(
    figures(
      ["method", "lowest", "quartile", "median", "mean", "quartile", "highest"],
      rows.map(({ m, sorted, middle }) =>
        [
          data.methods[m].label,
          sorted[0],
          quantile(sorted, 0.25),
          quantile(sorted, 0.5),
          middle,
          quantile(sorted, 0.75),
          sorted[sorted.length - 1],
        ].map((v) => (typeof v === "number" ? v.toFixed(1) : v)),
      ),
    ),
  );
  return ring;
};

const drawHeat = (holder, c, follow) => {
  const spread = data.spreads[c];
  if (!spread)
    return holder.replaceChildren(el("p", { class: "empty" }, "The results do not say who has which classes."));
  const { counts, classes } = spread,
    clients = counts.length,
    most = Math.max(1, ...counts.flat());
  const left = Math.min(110, Math.max(...classes.map((name) => name.length)) * 7 + 14);
  const row = classes.length > 40 ? 4 : classes.length > 20 ? 10 : 19,
    height = classes.length * row + 34;
  const described = `${clients} clients by ${classes.length} classes; a client has ${mean(counts.map((line) => line.filter(Boolean).length)).toFixed(1)} classes on average, and the largest single count is ${most}`;
  const canvas = el("canvas", {
    role: "img",
    "aria-label": `Training samples by client and class, ${where(c)}: ${described}`,
    style: `height:${height}px`,
  });
  holder.replaceChildren(canvas);
  const width = Math.max(260, holder.clientWidth),
    wide = (width - left) / clients;
  const paint = (marked) => {
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d"),
      style = getComputedStyle(document.documentElement);
    pen.scale(ratio, ratio);
    const heat = style.getPropertyValue("--heat"),
      gap = wide > 5 && row > 5 ? 1 : 0;
    for (let k = 0; k < clients; k++)
      for (let j = 0; j < classes.length; j++) {
        const n = counts[k][j];
        // A square root, or else a few large clients would leave all the others empty.
        pen.fillStyle = n ? `rgba(${heat}, ${0.1 + 0.9 * Math.sqrt(n / most)})` : style.getPropertyValue("--hair");
        pen.fillRect(left + k * wide, j * row, Math.max(wide - gap, 0.6), row - gap);
      }
    pen.fillStyle = style.getPropertyValue("--soft");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    classes.forEach((name, j) => {
      if (row > 8 || j % 10 === 0) pen.fillText(name, left - 8, j * row + row / 2, left - 10);
    });
    pen.textAlign = "center";
    for (const k of niceTicks(0, clients - 1 || 1, Math.max(2, Math.min(12, width / 80))).filter(
      (v) => Number.isInteger(v) && v < clients,
    ))
      pen.fillText(String(k), left + (k + 0.5) * wide, classes.length * row + 11);
    pen.fillText("client", left + (width - left) / 2, height - 7);
    if (marked !== null && marked !== undefined) {
      pen.strokeStyle = style.getPropertyValue("--ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(left + marked * wide - 1, 0.75, Math.max(wide, 2) + 1, classes.length * row - 1);
    }
  };
  paint(null);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(),
      k = Math.floor((event.clientX - box.left - left) / wide),
      j = Math.floor((event.clientY - box.top) / row);
    if (k < 0 || k >= clients || j < 0 || j >= classes.length) {
      hideTip();
      return follow(null);
    }
    showTip(event, nameOf(c, k), [
      [`class ${classes[j]}`, `${counts[k][j].toLocaleString("en")} samples`],
      ...clientRows(c, k, null),
    ]);
    follow(k);
  });
  canvas.addEventListener("pointerleave", () => {
    hideTip();
    follow(null);
  });
  const shown = counts.slice(0, 200);
  holder.append(
    el(
      "p",
      { class: "copy" },
      el(
        "span",
        {},
        "0",
        el("span", { class: "ramp" }),
        `${most.toLocaleString("en")} training samples, seed ${data.columns[c].seed}`,
      ),
    ),
    figures(
      ["client", ...classes],
      shown.map((line, k) => [nameOf(c, k), ...line.map(String)]),
    ),
  );
  return paint;
};
