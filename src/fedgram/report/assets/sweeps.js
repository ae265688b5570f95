// Sensitivity: how accuracy follows one hyper-parameter.
const drawSweep = (holder, sweep) => {
  const columns = new Set(shownColumns());
  const curves = sweep.curves
    .filter((curve) => columns.has(curve.c))
    .map((curve) => ({
      ...curve,
      points: curve.points
        .map(([place, means]) => [place, means[state.metric]])
        .filter(([, shown]) => shown !== null),
    }))
    .filter((curve) => curve.points.length)
    .map((curve, i) => ({ ...curve, i }));
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
