// The parts of the page around the charts: costs, sensitivity, one setting in detail, where results come from.
const drawCosts = (section) => {
  const drawn = chartsOf("scatter").map((chart) => ({ chart, ...card(chart, null, chart.note) }));
  section.replaceChildren(
    el("h2", {}, "What it costs"),
    el("p", { class: "note" }, "Bytes that really crossed and CPU seconds that were really spent, means over seeds."),
    el(
      "div",
      { class: "grid" },
      drawn.map((one) => one.node),
    ),
  );
  for (const { chart, holder } of drawn) attempt(drawScatter, holder, chart);
};

// Which hyper-parameters were varied does not depend on the metric, so that a card stays where one is unknown.
const drawSweeps = (section) => {
  const known = chartsOf("lines"),
    swept = new Map(data.charts.filter((chart) => chart.methods).map((chart) => [chart.name, chart]));
  const drawn = [...swept.values()]
    .filter((chart) => chart.methods.some(methodIsOn))
    .map((chart) => ({ chart: known.find(({ name }) => name === chart.name), ...card(chart, null, null) }));
  if (!drawn.length) return section.replaceChildren();
  section.replaceChildren(
    el("h2", {}, "Sensitivity"),
    el(
      "p",
      { class: "note" },
      `One hyper-parameter changes, all else is equal; means over seeds.${drawn.some(({ chart }) => isBanded(chart?.panels?.[0])) ? BAND : ""}`,
    ),
    el(
      "div",
      { class: "grid" },
      drawn.map((one) => one.node),
    ),
  );
  for (const { chart, holder } of drawn)
    if (chart) attempt(drawLines, holder, chart, chart.panels[0]);
    else say(holder, "Nothing to draw with these filters.");
};

// A choice among settings or seeds: `list` has the options, as values with their names.
const choiceOf = (name, list, now, section, set) =>
  el(
    "select",
    {
      "aria-label": name,
      id: name.toLowerCase(),
      on: {
        change: (event) => {
          set(+event.target.value);
          writeAddress();
          drawDetail(section);
          section.querySelector(`#${name.toLowerCase()}`).focus();
        },
      },
    },
    list.map(([value, text]) => el("option", { value, selected: value === now }, text)),
  );
const drawDetail = (section) => {
  const columns = shownColumns();
  if (!columns.includes(state.focus)) state.focus = columns[0] ?? 0;
  if (!columns.length) return section.replaceChildren();
  const c = state.focus,
    view = viewOf(c),
    seeds = seedsOf(c),
    seed = ` This is seed ${view.seeds[c]}.`;
  const settings = columns.map((i) => [i, where(i)]),
    setFocus = (value) => {
      state.focus = value;
    },
    setSeed = (value) => {
      state.seed = value;
    };
  const panelOf = (chart) => chart?.panels?.find((panel) => panel.column === c);
  const made = (chart, note, panel = panelOf(chart), ...extra) => ({
    chart,
    panel,
    ...card(chart, panel, note, ...extra),
  });
  // A card stays where a metric, or a setting, has nothing to be drawn in it.
  const curves = new Map(data.charts.filter(({ name }) => /^accuracy-rounds/.test(name)).map((one) => [one.name, one])),
    rounds = [...curves.values()].map((chart) => {
      const now = chartsOf("lines").find(({ name }) => name === chart.name) || { ...chart, panels: [] };
      return made(now, chart.note + (isBanded(panelOf(now)) ? BAND : ""));
    });
  const strips = chartsOf("strip", view.charts),
    usual = { kind: "strip", title: `${capital(metricNow().what)} of single clients`, note: "" },
    strip = strips.find((chart) => chart.metric) || strips[0] || usual,
    clients = made(strip, `${strip.note} Point at a client to follow it.${seed}`);
  const reliability = chartsOf("reliability", view.charts).map((chart) => made(chart, chart.note + seed));
  const spread = chartsOf("heat", view.charts).find(({ name }) => name === "classes"),
    classes = spread || { kind: "heat", title: "Training samples by client and class", note: "" },
    heat = data.numeric ? null : made(classes, classes.note + seed);
  const matrices = chartsOf("heat", view.charts)
    .filter((chart) => chart !== spread)
    .flatMap((chart) => chart.panels.map((panel) => ({ chart, panel })))
    .filter(({ panel }) => panel.column === c && methodIsOn(panel.method))
    .map(({ chart, panel }) => made(chart, (chart.note || "") + seed, panel, methodTag(panel.method)));
  section.replaceChildren(
    el("h2", {}, "One setting in detail"),
    el(
      "p",
      { class: "note choices" },
      columns.length > 1 ? ["Setting: ", choiceOf("Setting", settings, c, section, setFocus)] : where(c),
      seeds.length > 1
        ? [
            " Seed of single clients: ",
            choiceOf(
              "Seed",
              seeds.map((one) => [one, one]),
              view.seeds[c],
              section,
              setSeed,
            ),
          ]
        : "",
    ),
    el(
      "div",
      { class: "stack" },
      rounds.map((one) => one.node),
      reachOf(c),
      [clients, ...reliability, heat].filter(Boolean).map((one) => one.node),
      sitesOf(c),
      matrices.length
        ? el(
            "div",
            { class: "grid even" },
            matrices.map((one) => one.node),
          )
        : null,
    ),
  );
  for (const one of rounds) attempt(drawLines, one.holder, one.chart, one.panel);
  for (const one of reliability) attempt(drawReliability, one.holder, one.chart, one.panel);
  const marks = [];
  const follow = (k) => {
    if (k !== state.client) {
      state.client = k;
      for (const draw of marks) draw(k);
    }
  };
  state.client = null;
  const drawn = [
    attempt(drawStrip, clients.holder, strip, clients.panel, follow),
    heat && attempt(drawHeat, heat.holder, classes, heat.panel, follow),
    ...matrices.map(({ chart, panel, holder }) => attempt(drawHeat, holder, chart, panel, follow)),
  ];
  marks.push(...drawn.filter(Boolean));
};
// What it took to reach an accuracy, for the methods that are shown.
const reachOf = (c) => {
  const { targets, rows } = data.reach[METRICS[state.metric]]?.[c] || { rows: [] },
    shown = rows.filter(([m]) => methodIsOn(m));
  if (!shown.length) return null;
  const heads = targets.flatMap((target) => [`rounds to ${target}`, "bytes a client", "CPU seconds"]);
  return el(
    "div",
    { class: "card" },
    el("h3", {}, "What it takes to reach an accuracy"),
    plainTable(
      "What it takes to reach an accuracy",
      ["method", ...heads],
      shown.map(([m, ...texts]) => [data.methods[m].label, ...texts]),
      "scroll tight",
    ),
    el(
      "p",
      { class: "note" },
      "All rounds of a run count as equally costly. Where not all seeds reach an accuracy, figures are means of those ",
      "that do; – is never reached.",
    ),
  );
};
// How well the other parties' model predicts each party, for the classes or for each numeric outcome.
const sitesOf = (c) =>
  (data.sites[c] || []).map(({ caption, heads, rows, note }) =>
    el(
      "div",
      { class: "card" },
      el("h3", {}, "Parties left out in turn"),
      el("p", { class: "note" }, caption, " ", note),
      plainTable(caption, ["party", ...heads], rows),
    ),
  );
const methodTag = (m) => el("span", { class: "method" }, badge(m), data.methods[m].label);

const drawAbout = (section) => {
  const lines = (name, heads, rows) => plainTable(name, heads, rows, "scroll wraps");
  section.replaceChildren(
    el("h2", {}, "About these results"),
    data.failures.length
      ? el(
          "div",
          { class: "card" },
          el("h3", { class: "failed" }, `${data.failures.length} run${data.failures.length > 1 ? "s" : ""} failed`),
          lines("Failures", ["method", "setting", "error"], data.failures),
        )
      : "",
    data.damaged.length
      ? el(
          "div",
          { class: "card" },
          el("h3", { class: "failed" }, "Lines that could not be read"),
          el(
            "ul",
            {},
            data.damaged.map((text) => el("li", {}, text)),
          ),
        )
      : "",
    el(
      "details",
      {},
      el("summary", {}, "Hyper-parameters"),
      lines(
        "Hyper-parameters",
        ["method", "settings"],
        data.methods.map((method) => [
          method.label,
          method.settings.map((pair) => pair.join(" = ")).join(", ") || "none",
        ]),
      ),
    ),
    el(
      "details",
      {},
      el("summary", {}, "Versions and data"),
      lines("Versions and data", ["what", "value"], data.facts),
    ),
  );
};
