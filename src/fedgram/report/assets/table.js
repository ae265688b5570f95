// The table of a paper, sortable: methods × (clients × α); bold is what no test finds worse than the best.
const seedRows = (cell) => [
  ...cell.runs
    .filter((run) => run.figures[state.metric] !== null)
    .map((run) => [`seed ${run.seed}`, told(run.figures[state.metric])]),
  ...(cell.failed ? [["failed", String(cell.failed)]] : []),
];
const cellNode = (m, c, rank) => {
  const cell = cellOf(m, c),
    shown = cell.means[state.metric],
    around = cell.halves[state.metric];
  if (shown === null) return el("td", { class: cell.failed ? "failed" : "" }, cell.failed ? "failed" : "–");
  const value = el(rank === 1 ? "strong" : "span", { class: "value" }, figure(shown));
  return el(
    "td",
    {
      class: ["", "best", "second"][rank] || "",
      on: hint(`${data.methods[m].label}, ${where(c)}`, () => seedRows(cell)),
    },
    value,
    around === null ? null : [" ", el("small", {}, plusMinus(around, shown))],
    cell.trivial[state.metric] ? ` ${data.dagger}` : null,
    cell.failed ? [" ", el("small", { class: "failed" }, `(${cell.failed} failed)`)] : null,
  );
};
const drawTable = (section) => {
  const columns = shownColumns(),
    methods = shownMethods();
  const sorts = [
    ...columns.map((c) => ({
      key: `c${c}`,
      head: data.columns[c].spread,
      group: data.columns[c].group,
      of: (m) => cellValue(m, c),
      marks: () => tested(c, methods),
      cell: (m, rank) => cellNode(m, c, rank),
    })),
    columns.length > 1 && {
      key: "mean",
      head: "mean",
      group: "",
      edge: true,
      of: (m) => overall(m, columns),
      marks: () => ranking((m) => overall(m, columns), methods),
      cell: (m, rank) =>
        el(
          "td",
          { class: `edge ${["", "best", "second"][rank] || ""}` },
          overall(m, columns) === null
            ? "–"
            : el(rank === 1 ? "strong" : "span", { class: "value" }, figure(overall(m, columns))),
        ),
    },
    ...metricNow()
      .beside.map((key) => METRICS.indexOf(key))
      .map((i, place) => ({
        key: METRICS[i],
        head: metricAt(i).name,
        group: "",
        edge: place === 0,
        cheap: true,
        of: (m) => overall(m, columns, i),
        cell: (m) => {
          const v = overall(m, columns, i);
          return el("td", { class: `cost ${place === 0 ? "edge" : ""}` }, v === null ? "–" : figure(v, metricAt(i)));
        },
      })),
    ...[
      ["bytes", "sent", bytes],
      ["cpu", "CPU", time],
    ].map(([key, head, format], i) => ({
      key,
      head,
      group: "",
      edge: i === 0,
      cheap: true,
      of: (m) => cost(key, m, columns),
      cell: (m) => {
        const v = cost(key, m, columns),
          details =
            key === "bytes" && v !== null
              ? hint("Sent a client, mean", () => [
                  ["up", bytes(cost("up", m, columns))],
                  ["down", bytes(cost("down", m, columns))],
                ])
              : {};
        return el("td", { class: `cost ${i === 0 ? "edge" : ""}`, on: details }, v === null ? "–" : format(v));
      },
    })),
  ].filter(Boolean);
  const rank = new Map(sorts.filter((s) => !s.cheap).map((s) => [s.key, s.marks()]));
  const sorted = [...methods];
  const by = state.sort && sorts.find((s) => s.key === state.sort.key);
  if (by || (state.sort && state.sort.key === "name")) {
    const direction = state.sort.down ? -1 : 1;
    sorted.sort((a, b) => {
      const fixed = Boolean(data.methods[b].reference) - Boolean(data.methods[a].reference);
      if (fixed || data.methods[a].reference) return fixed;
      if (!by) return direction * data.methods[a].label.localeCompare(data.methods[b].label);
      const [x, y] = [by.of(a), by.of(b)];
      return x === null ? 1 : y === null ? -1 : direction * (x - y);
    });
  }
  const header = (key, text, edge, cheap) =>
    el(
      "th",
      {
        scope: "col",
        class: edge ? "edge" : "",
        "aria-sort": state.sort && state.sort.key === key ? (state.sort.down ? "descending" : "ascending") : "none",
      },
      el(
        "button",
        {
          type: "button",
          "data-sort": key,
          on: {
            click: () => {
              const first = key !== "name" && !cheap && !metricNow().lower;
              state.sort =
                state.sort && state.sort.key === key ? { key, down: !state.sort.down } : { key, down: first };
              writeAddress();
              drawTable(section);
              section.querySelector(`[data-sort="${key}"]`).focus();
            },
          },
        },
        text,
      ),
    );
  const groups = [];
  for (const s of sorts) {
    const last = groups[groups.length - 1];
    if (last && last.text === s.group && s.group) last.width++;
    else groups.push({ text: s.group, width: 1, edge: s.edge });
  }
  const exported = data.exports[METRICS[state.metric]],
    tests = data.tests[METRICS[state.metric]];
  const grid = el(
    "table",
    { class: "main" },
    el("caption", { hidden: true }, data.captions[METRICS[state.metric]]),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("td", {}),
        groups.map((g) =>
          g.text
            ? el("th", { class: "group", colspan: g.width, scope: "colgroup" }, el("span", {}, g.text))
            : el("td", { class: g.edge ? "edge" : "" }),
        ),
      ),
      el(
        "tr",
        {},
        header("name", "method"),
        sorts.map((s) => header(s.key, s.head, s.edge, s.cheap)),
      ),
    ),
    el(
      "tbody",
      {},
      sorted.map((m) =>
        el(
          "tr",
          { class: data.methods[m].reference ? "reference" : "", "data-method": data.methods[m].label },
          el(
            "th",
            { scope: "row", on: hint(data.methods[m].label, () => data.methods[m].settings) },
            badge(m),
            data.methods[m].label,
            tagOf(data.methods[m]),
          ),
          sorts.map((s) => s.cell(m, rank.has(s.key) ? rank.get(s.key).get(m) || 0 : 0)),
        ),
      ),
    ),
  );
  section.replaceChildren(
    el("h2", {}, capital(metricNow().what)),
    el(
      "p",
      { class: "note" },
      data.captions[METRICS[state.metric]],
      columns.length > 1 ? " Means over settings are not tested: the two best are underlined." : "",
      " “Sent” is what a client exchanges, up and down.",
      metricNow().beside.length && columns.length > 1 ? ` ${besideNames()}: means over the settings shown.` : "",
    ),
    el(
      "div",
      { class: "card table" },
      columns.length
        ? el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${metricNow().what}` }, grid)
        : el("p", { class: "empty" }, "No setting is left: choose fewer filters."),
    ),
    tests.rows.length
      ? el(
          "details",
          {},
          el("summary", {}, "Tests against the best method"),
          el("p", { class: "note" }, tests.caption),
          plainTable("Tests against the best method", ["method", ...tests.heads], tests.rows, "scroll tight"),
        )
      : null,
    el(
      "p",
      { class: "copy" },
      "Copy the whole table as",
      Object.entries(exported).map(([name, text]) =>
        el(
          "button",
          { type: "button", class: "quiet", on: { click: (event) => copyText(event.currentTarget, text) } },
          name,
        ),
      ),
      saveButton("CSV", "the whole table", () => download(`${metricNow().file}.csv`, exported.CSV, "text/csv")),
    ),
  );
  if (grid.offsetWidth > grid.parentNode?.clientWidth) grid.classList.add("dense");
};
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const besideNames = () =>
  metricNow()
    .beside.map((key) => data.metrics[key].name)
    .join(", ");
const tagOf = ({ reference, personal }) =>
  reference || personal ? el("span", { class: "tag" }, reference ? "reference" : "personal") : null;
