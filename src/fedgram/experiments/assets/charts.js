// Accuracy against what it costs, accuracy per round, and sensitivity to a hyper-parameter.
const drawCost = (holder, kind, caption, format) => {
  const columns = shownColumns();
  const points = shownMethods()
    .filter((m) => !data.methods[m].reference)
    .map((m) => {
      const each = columns
        .map((c) => ({ c, x: cost(kind, m, [c]), y: accuracy(m, c) }))
        .filter((p) => p.x > 0 && p.y !== null);
      return {
        m,
        each,
        x: each.length ? mean(each.map((p) => p.x)) : 0,
        y: each.length ? mean(each.map((p) => p.y)) : 0,
      };
    })
    .filter((p) => p.each.length);
  if (!points.length) return holder.replaceChildren(el("p", { class: "empty" }, "Nothing to draw with these filters."));
  const all = points.flatMap((p) => p.each);
  const title = `Accuracy against ${caption}`;
  const f = frame(holder, {
    height: 330,
    title,
    description: points.map((p) => `${data.methods[p.m].label}: ${percent(p.y)} % at ${format(p.x)}`).join("; "),
  });
  const reach = [Math.min(...all.map((p) => p.x)), Math.max(...all.map((p) => p.x))];
  const room = Math.max(1.25, (reach[1] / reach[0]) ** 0.12);
  const x = logarithmic(reach[0] / room, reach[1] * room, f.x0, f.x1),
    y = linear(
      ...padded(
        all.map((p) => p.y),
        0.5,
      ),
      f.y0,
      f.y1,
    );
  axisY(f, y);
  axisX(f, x, format, `${caption} (logarithmic)`);
  const references = shownMethods()
    .filter((m) => data.methods[m].reference)
    .map((m) => [m, overall(m, columns)])
    .filter(([, v]) => v !== null);
  const covered = [];
  for (const [m, v] of references) {
    if (y(v) < f.y1 || y(v) > f.y0) continue;
    const text = `${data.methods[m].label} ${percent(v)}`,
      long = text.length * 6.6;
    // At the end of the line where fewer marks are.
    const near = (from) =>
      all.filter((p) => Math.abs(x(p.x) - from - long / 2) < long / 2 + 12 && Math.abs(y(p.y) - y(v) + 10) < 14).length;
    const start = near(f.x1 - long) <= near(f.x0 + 4) ? f.x1 - long : f.x0 + 4;
    covered.push([start, y(v) - 19, start + long, y(v) + 1]);
    f.chart.append(
      svg("line", { x1: f.x0, x2: f.x1, y1: y(v), y2: y(v), stroke: colour(m), "stroke-dasharray": "5 4" }),
      svg("text", { class: "halo", x: start, y: y(v) - 6 }, text),
    );
  }
  if (columns.length > 1)
    for (const p of points)
      for (const q of p.each)
        f.chart.append(mark(p.m, 2.8, { transform: `translate(${x(q.x)} ${y(q.y)})`, opacity: 0.35 }));
  for (const p of points) {
    f.chart.append(
      mark(p.m, 7, {
        transform: `translate(${x(p.x)} ${y(p.y)})`,
        stroke: "var(--card)",
        "stroke-width": 1.5,
        tabindex: 0,
        on: hint(data.methods[p.m].label, () => [
          ["accuracy", `${percent(p.y)} %`],
          [caption, format(p.x)],
          ["settings", String(p.each.length)],
        ]),
      }),
    );
  }
  placeNames(
    f,
    points.map((p) => ({ x: x(p.x), y: y(p.y), name: data.methods[p.m].label })),
    covered,
  );
  holder.append(
    figures(
      ["method", "accuracy, %", caption],
      points.map((p) => [data.methods[p.m].label, percent(p.y), format(p.x)]),
    ),
  );
};

const drawRounds = (holder, c) => {
  const methods = shownMethods(),
    metric = METRICS[state.metric];
  const curves = data.curves
    .filter((curve) => curve.c === c && methods.includes(curve.m))
    .map((curve) => ({ m: curve.m, points: curve.rounds.map((round, i) => [round, curve.values[metric][i] / 100]) }));
  const iterative = new Set(curves.map((curve) => curve.m));
  const flat = methods
    .filter((m) => !iterative.has(m) && accuracy(m, c) !== null)
    .map((m) => ({ m, y: accuracy(m, c) }));
  if (!curves.length)
    return holder.replaceChildren(el("p", { class: "empty" }, "No iterative method is shown in this setting."));
  const all = [...curves.flatMap((curve) => curve.points.map((p) => p[1])), ...flat.map((p) => p.y)];
  const last = Math.max(...curves.flatMap((curve) => curve.points.map((p) => p[0])));
  const longest = Math.min(
    170,
    Math.max(...[...curves, ...flat].map(({ m }) => data.methods[m].label.length)) * 6.8 + 14,
  );
  const f = frame(holder, {
    height: 360,
    right: longest,
    title: `Accuracy per round, ${where(c)}`,
    description: [
      ...curves.map(
        ({ m, points }) =>
          `${data.methods[m].label} ends at ${percent(points[points.length - 1][1])} % after ${points.length} rounds`,
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
      svg("text", { x: f.x1 + 6, y: at + 4, style: `fill:${colour(m)};font-weight:600` }, data.methods[m].label),
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

const drawSweep = (holder, sweep) => {
  const columns = new Set(shownColumns());
  const curves = sweep.curves
    .filter((curve) => columns.has(curve.c))
    .map((curve, i) => ({
      ...curve,
      i,
      points: curve.points.map(([place, found]) => [place, mean(found[state.metric]) / 100]),
    }));
  if (!curves.length) return holder.replaceChildren(el("p", { class: "empty" }, "Nothing to draw with these filters."));
  const all = curves.flatMap((curve) => curve.points.map((p) => p[1]));
  const name = (curve) =>
    sweep.curves.some((other) => other.c === curve.c && other.rest !== curve.rest)
      ? `${where(curve.c)}; ${curve.rest}`
      : where(curve.c);
  const title = `${sweep.parameter} of ${sweep.method}`;
  const f = frame(holder, {
    height: 300,
    title,
    description: curves
      .map(
        (curve) =>
          `${name(curve)}: ${curve.points.map(([p, v]) => `${sweep.values[p]} gives ${percent(v)} %`).join(", ")}`,
      )
      .join("; "),
  });
  const numbers = sweep.numbers,
    spaced = numbers
      ? numbers[0] > 0 && numbers[numbers.length - 1] / numbers[0] >= 50
        ? logarithmic
        : linear
      : linear;
  const scale = numbers
    ? spaced(numbers[0], numbers[numbers.length - 1], f.x0 + 16, f.x1 - 10)
    : linear(0, sweep.values.length - 1, f.x0 + 30, f.x1 - 30);
  const x = (place) => scale(numbers ? numbers[place] : place),
    y = linear(...padded(all, 0.5), f.y0, f.y1);
  axisY(f, y);
  axisX(
    f,
    Object.assign(x, { ticks: () => [] }),
    (place) => sweep.values[place],
    `${sweep.parameter}${spaced === logarithmic ? " (logarithmic)" : ""}`,
    sweep.values
      .map((_, i) => i)
      .filter((i) => sweep.values.length < 9 || i % Math.ceil(sweep.values.length / 8) === 0),
  );
  for (const curve of curves) {
    f.chart.append(
      svg("path", {
        d: `M${curve.points.map(([p, v]) => `${x(p).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}`,
        fill: "none",
        stroke: palette(curve.i),
        "stroke-width": 2,
      }),
    );
    for (const [p, v] of curve.points) {
      f.chart.append(
        svg("path", {
          d: SHAPES[data.shapes[curve.i % data.shapes.length]](4.5),
          fill: palette(curve.i),
          stroke: "var(--card)",
          transform: `translate(${x(p)} ${y(v)})`,
          tabindex: 0,
          on: hint(name(curve), () => [[`${sweep.parameter} = ${sweep.values[p]}`, `${percent(v)} %`]]),
        }),
      );
    }
  }
  holder.append(
    el(
      "p",
      { class: "copy" },
      curves.map((curve) =>
        el(
          "span",
          {},
          svg(
            "svg",
            { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" },
            svg("path", { d: SHAPES[data.shapes[curve.i % data.shapes.length]](4.5), fill: palette(curve.i) }),
          ),
          ` ${name(curve)}`,
        ),
      ),
    ),
    figures(
      ["setting", ...sweep.values],
      curves.map((curve) => [
        name(curve),
        ...sweep.values.map((_, i) => {
          const p = curve.points.find(([place]) => place === i);
          return p ? percent(p[1]) : "–";
        }),
      ]),
    ),
  );
};
