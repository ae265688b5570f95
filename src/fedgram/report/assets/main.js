// The page: filters above, sections below; everything is drawn again when what is shown changes.
const main = document.getElementById("main"),
  filters = document.getElementById("filters");

const chips = (name, list, face) =>
  el(
    "fieldset",
    { class: "filter" },
    el("legend", {}, name),
    list.map((value, i) =>
      el(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-pressed": String(isOn(name, value)),
          "data-filter": `${name}:${value}`,
          on: {
            click: () => {
              toggle(name, value, list);
              refresh();
            },
          },
        },
        face ? face(i) : null,
        value,
      ),
    ),
  );

const drawFilters = () => {
  const active =
    document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.filter : null;
  filters.replaceChildren(
    el(
      "div",
      { class: "segment", role: "group", "aria-label": "Metric" },
      METRICS.map((name, i) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(state.metric === i),
            title: data.metrics[name],
            "data-filter": `Metric:${name}`,
            on: {
              click: () => {
                state.metric = i;
                refresh();
              },
            },
          },
          METRIC_NAMES[name],
        ),
      ),
    ),
    ...facets.filter((facet) => facet.values.length > 1).map((facet) => chips(facet.name, facet.values)),
    chips(
      "Methods",
      data.methods.map((method) => method.label),
      badge,
    ),
  );
  if (active)
    for (const node of filters.querySelectorAll("[data-filter]")) if (node.dataset.filter === active) node.focus();
};

// One section each, in the order of the page.
const sections = [
  [el("dl", { class: "tiles", id: "tiles" }), drawTiles],
  [el("section", { id: "accuracy" }), drawTable],
  [
    el("section", { id: "costs" }),
    (section) => {
      const sent = card(
          "Accuracy against traffic",
          "Up and left is better. The large mark is the mean, small ones are single settings.",
        ),
        cpu = card("Accuracy against CPU time", "All clients and the server together.");
      section.replaceChildren(
        el("h2", {}, "What it costs"),
        el(
          "p",
          { class: "note" },
          "Bytes that really crossed and CPU seconds that were really spent, means over seeds.",
        ),
        el("div", { class: "grid" }, sent.node, cpu.node),
      );
      attempt(drawCost, sent.holder, "bytes", "bytes a client", bytes);
      attempt(drawCost, cpu.holder, "cpu", "CPU time", time);
    },
  ],
  ...(data.sweeps.length
    ? [
        [
          el("section", { id: "sensitivity" }),
          (section) => {
            const on = new Set(shownMethods().map((m) => data.methods[m].name)),
              drawn = data.sweeps
                .filter((sweep) => on.has(sweep.method))
                .map((sweep) => ({ sweep, ...card(`${sweep.method}: ${sweep.parameter}`, null) }));
            section.replaceChildren(
              ...(drawn.length
                ? [
                    el("h2", {}, "Sensitivity"),
                    el("p", { class: "note" }, "One hyper-parameter changes, all else is equal; means over seeds."),
                    el(
                      "div",
                      { class: "grid" },
                      drawn.map((one) => one.node),
                    ),
                  ]
                : []),
            );
            for (const { sweep, holder } of drawn) attempt(drawSweep, holder, sweep);
          },
        ],
      ]
    : []),
  [el("section", { id: "detail" }), drawDetail],
  [el("section", { id: "about" }), drawAbout],
];
const refresh = () => {
  hideTip();
  drawFilters();
  for (const [section, draw] of sections) attempt(draw, section);
};

const remember = (theme) => {
  try {
    localStorage.setItem("fedgram-theme", theme);
  } catch {
    /* a page from disk may have no storage */
  }
};
const recall = () => {
  try {
    return localStorage.getItem("fedgram-theme");
  } catch {
    return null;
  }
};
const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme-name").textContent = theme === "dark" ? "Light" : "Dark";
};
const system = matchMedia("(prefers-color-scheme: dark)");
setTheme(recall() || (system.matches ? "dark" : "light"));
system.addEventListener("change", () => {
  if (!recall()) {
    setTheme(system.matches ? "dark" : "light");
    refresh();
  }
});
document.getElementById("theme").addEventListener("click", () => {
  const theme = dark() ? "light" : "dark";
  setTheme(theme);
  remember(theme);
  refresh();
});

main.replaceChildren(...sections.map(([section]) => section));
refresh();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) {
    width = innerWidth;
    requestAnimationFrame(refresh);
  }
});
// Charts are drawn for the width that they have, so a sheet of paper needs its own.
addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  document.body.classList.add("paper");
  refresh();
  for (const node of document.querySelectorAll("#about details")) node.open = true;
});
addEventListener("afterprint", () => {
  document.body.classList.remove("paper");
  setTheme(recall() || (system.matches ? "dark" : "light"));
  refresh();
});
document.documentElement.dataset.ready = "true";
