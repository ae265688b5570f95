// What can be taken along: tables as CSV, charts as SVG, matrices as PNG, text to the clipboard.
const download = (name, content, type) => {
  const address = URL.createObjectURL(new Blob([content], { type }));
  followLink(name, address);
  setTimeout(() => URL.revokeObjectURL(address), 60000);
};
const followLink = (name, address) => {
  const link = el("a", { download: name, href: address });
  document.body.append(link);
  link.click();
  link.remove();
};
// No spreadsheet may take a name for a formula; what is a number stays as it is.
const csvCell = (text) => {
  const plain = /^(\t|\r|\s*[=+\-@])/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : String(text);
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
};
const csvOf = (rows) => rows.map((row) => `${row.map(csvCell).join(",")}\n`).join("");
const saveButton = (text, what, save) =>
  el(
    "button",
    { type: "button", class: "quiet save", "aria-label": `Download ${what} as ${text}`, on: { click: save } },
    `↓ ${text}`,
  );

const DRAWN = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "opacity",
].concat(["paint-order", "font-family", "font-size", "font-weight", "text-anchor", "visibility"]);
// A chart as a file of its own: with its style at every element, its text alternative and a background.
const svgFile = (chart) => {
  const copy = chart.cloneNode(true);
  const [from, to] = [chart, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    to[i].removeAttribute("style");
    to[i].removeAttribute("tabindex");
    to[i].removeAttribute("class");
    for (const name of DRAWN) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  const { width, height } = chart.viewBox.baseVal;
  copy.setAttribute("width", width);
  copy.setAttribute("role", "img");
  copy.prepend(
    svg("title", {}, chart.getAttribute("aria-label")),
    svg("rect", { width, height, fill: getComputedStyle(document.documentElement).getPropertyValue("--card") }),
  );
  return new XMLSerializer().serializeToString(copy);
};
const savePicture = (holder, name) => {
  const drawn = holder.querySelector("svg.chart, canvas");
  if (drawn.tagName !== "CANVAS") return download(`${name}.svg`, svgFile(drawn), "image/svg+xml");
  const copy = el("canvas", { width: drawn.width, height: drawn.height }),
    pen = copy.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--card");
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(drawn, 0, 0);
  // At once, and not in a callback: browsers hold back downloads that come after the click.
  return followLink(`${name}.png`, copy.toDataURL("image/png"));
};

const copyText = async (button, text) => {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", {});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = name;
  }, 1400);
};

// A table with its download; what is wide or long scrolls, also by keyboard.
const plainTable = (name, heads, rows, look = "scroll") => [
  el(
    "div",
    { class: look, tabindex: 0, role: "region", "aria-label": `Table: ${name}` },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el("th", { scope: "col" }, head)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((text) => el("td", {}, text)),
          ),
        ),
      ),
    ),
  ),
  el(
    "p",
    { class: "copy" },
    saveButton("CSV", name, () => download(`${fileName(name)}.csv`, csvOf([heads, ...rows]), "text/csv")),
  ),
];
const fileName = (name) =>
  name
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "");
// The figures of a chart as a table, made when the reader opens it: a matrix may have forty thousand.
const figures = (name, made) => {
  const fill = () => {
    if (!node.querySelector("table")) node.append(...plainTable(name, ...made()));
  };
  // A click comes before what it opens is shown; a program may open it without one.
  const node = el("details", { on: { toggle: fill } }, el("summary", { on: { click: fill } }, "Figures as a table"));
  return node;
};
// A card for a chart, or for one panel of it, with its download.
const card = (chart, panel, note, ...extra) => {
  const holder = el("div", { class: "holder" }),
    name = fileName([chart.name, panel?.title].filter(Boolean).join(" ")),
    format = chart.kind === "heat" ? "PNG" : "SVG";
  return {
    holder,
    node: el(
      "section",
      { class: "card" },
      el(
        "div",
        { class: "head" },
        el("h3", {}, chart.title),
        ...extra,
        saveButton(format, chart.title, () => savePicture(holder, name)),
      ),
      note ? el("p", { class: "note" }, note) : null,
      holder,
    ),
  };
};
