// The parts of the page around the charts: key figures, one setting in detail, where results come from.
const drawTiles = (section) => {
  const columns = shownColumns(),
    methods = shownMethods();
  const ranked = methods
    .filter((m) => !data.methods[m].reference)
    .map((m) => [m, overall(m, columns)])
    .filter(([, v]) => v !== null)
    .sort((a, b) => b[1] - a[1]);
  const tile = (term, value, more) =>
    el("div", { class: "tile" }, el("dt", {}, term), el("dd", {}, value, el("small", {}, more)));
  const tiles = [];
  if (ranked.length) {
    const [best, value] = ranked[0];
    const wins = columns.filter((c) => ranking((m) => accuracy(m, c), methods).get(best) === 1).length;
    tiles.push(
      tile(
        "Highest accuracy on average",
        data.methods[best].label,
        `${percent(value)} %` +
          (columns.length > 1 && ranked.length > 1 ? `, first in ${wins} of ${columns.length} settings` : ""),
      ),
    );
    const reference = methods.find((m) => data.methods[m].reference && overall(m, columns) !== null);
    if (reference !== undefined) {
      const gap = value - overall(reference, columns);
      tiles.push(
        tile(
          "Against all data in one place",
          `${gap < -0.005 ? "−" : gap > 0.005 ? "+" : "±"}${Math.abs(gap).toFixed(2)} points`,
          `${data.methods[reference].label}: ${percent(overall(reference, columns))} %`,
        ),
      );
    }
    const sent = cost("bytes", best, columns);
    if (sent !== null)
      tiles.push(
        tile(
          "What a client exchanges",
          bytes(sent),
          `${bytes(cost("up", best, columns))} up, ${bytes(cost("down", best, columns))} down, with ${data.methods[best].label}`,
        ),
      );
  }
  tiles.push(
    tile(
      "Runs",
      data.runs.length.toLocaleString("en"),
      [
        `${data.columns.length} setting${data.columns.length > 1 ? "s" : ""}`,
        `${data.seeds} seed${data.seeds > 1 ? "s" : ""}`,
        data.failures.length ? `${data.failures.length} failed` : "",
      ]
        .filter(Boolean)
        .join(", "),
    ),
  );
  section.replaceChildren(...tiles);
};

const drawDetail = (section) => {
  const columns = shownColumns();
  if (!columns.includes(state.focus)) state.focus = columns[0];
  if (state.focus === undefined) return section.replaceChildren();
  const c = state.focus;
  const select = el(
    "select",
    {
      "aria-label": "Setting",
      id: "setting",
      on: {
        change: (event) => {
          state.focus = +event.target.value;
          drawDetail(section);
          section.querySelector("select").focus();
        },
      },
    },
    columns.map((i) => el("option", { value: i, selected: i === c }, where(i))),
  );
  const rounds = data.curves.length
    ? card("Accuracy per round", "Lines are methods that need rounds; a star is a method that is done after one.")
    : null;
  const spread = card(
    "Accuracies of single clients",
    `A dot is a client, the bar the middle half, the line the median, the diamond the mean; seed ${data.columns[c].seed}. Point at a client to follow it.`,
  );
  const heat = card("Who has which classes", null),
    matrices = matrixCards(c);
  section.replaceChildren(
    el("h2", {}, "One setting in detail"),
    el("p", { class: "note" }, columns.length > 1 ? ["Setting: ", select] : where(c)),
    el(
      "div",
      { class: "stack" },
      [rounds, spread, heat].filter(Boolean).map((one) => one.node),
      matrices.length
        ? el(
            "div",
            { class: "grid even" },
            matrices.map((one) => one.node),
          )
        : null,
    ),
  );
  if (rounds) attempt(drawRounds, rounds.holder, c);
  const marks = [];
  const follow = (k) => {
    if (k !== state.client) {
      state.client = k;
      for (const mark of marks) mark(k);
    }
  };
  state.client = null;
  const drawn = [
    attempt(drawClients, spread.holder, c, follow),
    attempt(drawHeat, heat.holder, c, follow),
    ...matrices.map(({ matrix, holder }) => attempt(drawMatrix, holder, c, matrix, follow)),
  ];
  marks.push(...drawn.filter(Boolean));
};

const drawAbout = (section) => {
  const lines = (heads, rows) => plainTable(heads, rows, "scroll wraps");
  section.replaceChildren(
    el("h2", {}, "About these results"),
    data.failures.length
      ? el(
          "div",
          { class: "card" },
          el("h3", { class: "failed" }, `${data.failures.length} run${data.failures.length > 1 ? "s" : ""} failed`),
          lines(["method", "setting", "error"], data.failures),
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
        ["method", "settings"],
        data.methods.map((method) => [
          method.label,
          method.settings.map((pair) => pair.join(" = ")).join(", ") || "none",
        ]),
      ),
    ),
    el("details", {}, el("summary", {}, "Versions and data"), lines(["what", "value"], data.facts)),
  );
};
