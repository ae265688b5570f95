// Elements, the tooltip, and how figures are written. Text from results only ever becomes text, never markup.
const make = (name, attributes, children, space) => {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of [children].flat(2)) if (child !== null && child !== undefined && child !== "") node.append(child);
  return node;
};
const el = (name, attributes, ...children) => make(name, attributes, children);
const svg = (name, attributes, ...children) => make(name, attributes, children, "http://www.w3.org/2000/svg");

// Draw something in its place; what cannot be drawn says so there, and the rest of the page goes on.
const attempt = (draw, place, ...rest) => {
  try {
    return draw(place, ...rest);
  } catch (error) {
    console.error(error);
    return say(place, `This could not be drawn: ${error.message}`);
  }
};
const say = (place, text) => {
  place.replaceChildren(el("p", { class: "empty" }, text));
  return null;
};

const tip = document.getElementById("tip");
let anchor = null; // the mark that has the keyboard's focus, if the tip is about it
const hideTip = () => {
  tip.hidden = true;
  anchor = null;
};
const showTip = (event, title, rows) => {
  tip.replaceChildren(
    el("b", {}, title),
    el(
      "table",
      {},
      rows.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value))),
    ),
  );
  tip.hidden = false;
  anchor = event.type === "focus" ? event.target : null;
  placeTip(event.target, event.clientX, event.clientY);
};
const placeTip = (node, clientX, clientY) => {
  const box = node.getBoundingClientRect();
  const x = clientX || box.left + box.width / 2,
    y = clientY || box.bottom;
  const left = x + 16 + tip.offsetWidth > innerWidth ? x - tip.offsetWidth - 12 : x + 16;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
};
// What is shown on hover is shown on keyboard focus as well.
const hint = (title, rows) => ({
  pointerenter: (event) => showTip(event, title, rows()),
  pointermove: (event) => showTip(event, title, rows()),
  focus: (event) => showTip(event, title, rows()),
  pointerleave: hideTip,
  blur: hideTip,
});
// A mark that the keyboard reaches has a role, and says what its tooltip says.
const focusable = (title, rows) => ({
  tabindex: 0,
  role: "img",
  "aria-label": `${title}: ${rows.map((row) => row.join(" ")).join(", ")}`,
  on: hint(title, () => rows),
});
// The focus brings its mark into view, and the tip goes with it.
addEventListener("scroll", () => (anchor ? placeTip(anchor) : hideTip()), { passive: true });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});

const significant = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3)));
const bytes = (count) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  for (; count >= 1000 && place < units.length - 1; place++) count /= 1000;
  return `${significant(count)} ${units[place]}`;
};
const time = (seconds) => (seconds < 1 ? `${significant(seconds * 1000)} ms` : `${significant(seconds)} s`);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const WRITE = { bytes, seconds: time, percent: String, number: String };
// A figure of a client, or of a range of confidence, as the unit of its axis wants it.
const short = (value, unit) => (unit === "percent" ? value.toFixed(1) : String(+value.toPrecision(4)));
const said = (value, unit) => (unit === "percent" ? `${short(value, unit)} %` : short(value, unit));
