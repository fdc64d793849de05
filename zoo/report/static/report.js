"use strict";
// Theme, charts, sorting, filtering and the pages of a gallery. Plotly draws the charts.

const root = document.documentElement;
const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

// ---- charts ------------------------------------------------------------------------------------

// Okabe and Ito's colours, which are colour-blind safe; lighter variants for the dark theme.
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a3477f", "#946200", "#2b7fb8"],
  dark: ["#56b4e9", "#e69f00", "#2fc49a", "#e59bc6", "#f0e442", "#ff8f61"],
};

/** Return a figure's layout in the colours of the page. */
function inTheme(layout) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(name).trim();
  const title = { font: { size: 13 } };
  const axis = { gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), linecolor: colour("--muted"), automargin: true };
  const themed = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") },
    colorway: COLOURS[isDark() ? "dark" : "light"],
    margin: { l: 50, r: 12, t: 12, b: 44 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--accent") },
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--rule"), font: { color: colour("--text") } },
    ...layout,
  };
  for (const name of ["xaxis", "yaxis"]) {
    const own = layout[name] || {};
    themed[name] = { ...axis, ...own, title: { ...title, ...own.title } };
  }
  return themed;
}

const OPTIONS = { responsive: true, displaylogo: false, displayModeBar: false };
const drawn = []; // functions that draw a chart; called again when the theme changes

/** Prepare the figures of the page from the JSON beside them. */
function setUpCharts() {
  for (const place of document.querySelectorAll("[data-figure]")) {
    const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    drawn.push(() => Plotly.react(place, figure.data, inTheme(figure.layout), OPTIONS));
  }
}

// ---- theme -------------------------------------------------------------------------------------

function setUpTheme() {
  const button = document.getElementById("theme");
  const show = () => {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
    drawn.forEach((draw) => draw());
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("zoo-theme", root.dataset.theme);
    } catch {
      // storage may be forbidden; then the choice applies to this page only
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  button.hidden = false;
  show();
}

// ---- tables ------------------------------------------------------------------------------------

/** Return the value that a cell is sorted by: a number or text; null if it is empty. */
function sortKey(cell) {
  const value = cell.dataset.value ?? cell.textContent.trim();
  if (value === "" || value === "–") return null;
  return cell.classList.contains("num") ? Number(value) : value;
}

/** Sort the experiments of a table, each with the lines that belong to it; blanks come last. */
function sortBy(table, head, descending) {
  const column = head.cellIndex;
  const sign = descending ? -1 : 1;
  const groups = [...table.tBodies].map((body) => [body, sortKey(body.rows[0].cells[column])]);
  groups.sort(([, a], [, b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    return sign * order;
  });
  for (const other of head.parentElement.cells) {
    if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  }
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  table.append(...groups.map(([body]) => body));
}

function setUpTables() {
  for (const button of document.querySelectorAll(".sortable .sort")) {
    const head = button.closest("th");
    button.addEventListener("click", () => {
      // the first click sorts numbers from the largest, text from a
      const now = head.getAttribute("aria-sort");
      const first = head.classList.contains("num");
      sortBy(head.closest("table"), head, now === "none" ? first : now === "ascending");
    });
  }
}

function setUpFilter() {
  const input = document.getElementById("filter");
  if (!input) return;
  const bodies = [...document.querySelectorAll(".sortable tbody")];
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const body of bodies) {
      const text = body.textContent.toLowerCase();
      body.hidden = !words.every((word) => text.includes(word));
      shown += !body.hidden;
    }
    for (const board of document.querySelectorAll(".board")) {
      board.hidden = !board.querySelector("tbody:not([hidden])");
    }
    document.getElementById("shown").textContent = words.length ? `${shown} of ${bodies.length} shown` : "";
  };
  input.addEventListener("input", apply);
  apply(); // a browser may have kept what was typed
}

// ---- gallery -----------------------------------------------------------------------------------

const QUERIES_AT_A_TIME = 6;

/** Show some queries at a time; without JavaScript all are shown. */
function setUpGallery(gallery) {
  const queries = [...gallery.querySelectorAll(".query")];
  const pages = Math.ceil(queries.length / QUERIES_AT_A_TIME);
  const buttons = [...gallery.querySelectorAll("[data-step]")];
  let page = 0;
  const go = (step) => {
    page = Math.min(Math.max(page + step, 0), pages - 1);
    const first = page * QUERIES_AT_A_TIME;
    queries.forEach((query, n) => (query.hidden = n < first || n >= first + QUERIES_AT_A_TIME));
    buttons[0].disabled = page === 0;
    buttons[1].disabled = page === pages - 1;
    const last = Math.min(first + QUERIES_AT_A_TIME, queries.length);
    gallery.querySelector("output").textContent = `Queries ${first + 1} to ${last} of ${queries.length}`;
  };
  for (const button of buttons) button.addEventListener("click", () => go(Number(button.dataset.step)));
  gallery.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    go(step);
  });
  gallery.querySelector(".pager").hidden = pages < 2;
  go(0);
}

document.addEventListener("DOMContentLoaded", () => {
  setUpCharts();
  setUpTheme();
  setUpTables();
  setUpFilter();
  document.querySelectorAll(".gallery").forEach(setUpGallery);
});
