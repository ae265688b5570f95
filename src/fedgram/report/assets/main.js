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
              choose();
            },
          },
        },
        face ? face(i) : null,
        value,
      ),
    ),
  );

const drawFilters = () => {
  const active = document.activeElement?.dataset?.filter;
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
            title: data.metrics[name].about,
            "data-filter": `Metric:${name}`,
            on: {
              click: () => {
                state.metric = i;
                choose();
              },
            },
          },
          data.metrics[name].name,
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
  [el("section", { id: "costs" }), drawCosts],
  [el("section", { id: "sensitivity" }), drawSweeps],
  [el("section", { id: "detail" }), drawDetail],
  [el("section", { id: "about" }), drawAbout],
];
const refresh = () => {
  hideTip();
  drawFilters();
  for (const [section, draw] of sections) attempt(draw, section);
};
const choose = () => {
  refresh();
  writeAddress();
};
addEventListener("hashchange", () => {
  if (location.hash === written) return;
  readAddress();
  refresh();
});

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
readAddress();
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
