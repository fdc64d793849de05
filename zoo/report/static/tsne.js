"use strict";
// The map of the test embedding: pictures where there is room, more of them when zoomed in.

const PICTURE = 40; // pixels
const MOST_PICTURES = 500;

/** Return the items of a view whose pictures do not cover each other, chosen in order. */
function withRoom(data, view, width, height) {
  const taken = new Map();
  const chosen = [];
  for (let n = 0; n < data.x.length && chosen.length < MOST_PICTURES; n += 1) {
    const left = ((data.x[n] - view.x[0]) / (view.x[1] - view.x[0])) * width;
    const top = ((data.y[n] - view.y[0]) / (view.y[1] - view.y[0])) * height;
    if (left < 0 || left > width || top < 0 || top > height) continue;
    const column = Math.floor(left / PICTURE);
    const row = Math.floor(top / PICTURE);
    let free = true;
    for (let i = -1; free && i < 2; i += 1) {
      for (let j = -1; free && j < 2; j += 1) {
        const other = taken.get(`${column + i},${row + j}`);
        free = !other || Math.abs(other[0] - left) >= PICTURE || Math.abs(other[1] - top) >= PICTURE;
      }
    }
    if (!free) continue;
    taken.set(`${column},${row}`, [left, top]);
    chosen.push(n);
  }
  return chosen;
}

/** Return the smallest and the largest value, with a margin. */
function extent(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const margin = 0.05 * (high - low || 1);
  return [low - margin, high + margin];
}

document.addEventListener("DOMContentLoaded", () => {
  const data = JSON.parse(document.getElementById("tsne-data").textContent);
  const place = document.getElementById("tsne");
  const tip = document.getElementById("tip");
  const pictures = document.getElementById("pictures");
  const source = (n) => data.folder + data.index[n] + data.suffix;
  const all = { x: extent(data.x), y: extent(data.y) };
  let view = { x: [...all.x], y: [...all.y] };
  let marked = null;
  const touch = matchMedia("(pointer: coarse)").matches;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const numbers = data.x.map((_, n) => n);
  const of = (chosen) => ({ x: chosen.map((n) => data.x[n]), y: chosen.map((n) => data.y[n]), customdata: chosen });
  const right = of(numbers.filter((n) => data.rank[n] === 1));
  const wrong = of(numbers.filter((n) => data.rank[n] !== 1));

  function traces() {
    const kind = { type: "scatter", mode: "markers", hoverinfo: "none" };
    const own = of(marked === null ? [] : numbers.filter((n) => data.label[n] === marked));
    const size = pictures.getAttribute("aria-pressed") === "true" ? 4 : 6;
    return [
      { ...kind, ...right, name: "nearest is right", marker: { color: colour("--right"), size, opacity: 0.7 } },
      { ...kind, ...wrong, name: "nearest is wrong", marker: { color: colour("--wrong"), size: size + 2, symbol: "x", opacity: 0.85 } },
      { ...kind, ...own, name: "marked class", hoverinfo: "skip", showlegend: false, marker: { color: "rgba(0,0,0,0)", size: 15, line: { color: colour("--text"), width: 2.5 } } },
    ];
  }

  function layout() {
    const axis = { visible: false, automargin: false };
    const zoomed = view.x[1] - view.x[0] < 0.99 * (all.x[1] - all.x[0]);
    const found = inTheme({
      xaxis: { ...axis, range: [...view.x] },
      yaxis: { ...axis, range: [...view.y] },
      margin: { l: 4, r: 4, t: 30, b: 4 },
      hovermode: "closest",
      // a finger scrolls the page until the map is zoomed in
      dragmode: touch ? (zoomed ? "pan" : false) : "zoom",
    });
    if (pictures.getAttribute("aria-pressed") === "true") addPictures(found);
    return found;
  }

  function addPictures(found) {
    const width = place.clientWidth - 8;
    const height = place.clientHeight - 34;
    const sizex = ((PICTURE - 4) / width) * (view.x[1] - view.x[0]);
    const sizey = ((PICTURE - 4) / height) * (view.y[1] - view.y[0]);
    const chosen = withRoom(data, view, width, height);
    found.images = chosen.map((n) => ({
      source: source(n), x: data.x[n], y: data.y[n], sizex, sizey,
      xref: "x", yref: "y", xanchor: "center", yanchor: "middle", layer: "above",
    }));
    found.shapes = chosen
      .filter((n) => data.rank[n] !== 1)
      .map((n) => ({
        type: "rect", xref: "x", yref: "y", layer: "above",
        x0: data.x[n] - sizex / 2, x1: data.x[n] + sizex / 2, y0: data.y[n] - sizey / 2, y1: data.y[n] + sizey / 2,
        line: { color: colour("--wrong"), width: 2, dash: "dash" },
      }));
  }

  const options = { ...OPTIONS, doubleClick: false }; // a double click shows all, see below
  const draw = () => Plotly.react(place, traces(), layout(), options);

  const show = (x, y) => ((view = { x, y }), draw());
  const showAll = () => show([...all.x], [...all.y]);

  /** Zoom by a factor and move by shares of the view. */
  function move(factor, right = 0, up = 0) {
    const next = (range, by) => {
      const half = ((range[1] - range[0]) * factor) / 2;
      const middle = (range[0] + range[1]) / 2 + by * (range[1] - range[0]);
      return [middle - half, middle + half];
    };
    show(next(view.x, right), next(view.y, up));
  }

  function mark(label) {
    if (label === marked) return;
    marked = label;
    const own = traces()[2];
    Plotly.restyle(place, { x: [own.x], y: [own.y], customdata: [own.customdata] }, [2]);
  }

  function showTip(n, event) {
    const rank = data.rank[n];
    tip.querySelector("img").src = source(n);
    tip.querySelector("span").textContent =
      data.names[data.label[n]] + "\n" + (rank === 1 ? "nearest is right" : `first right at rank ${rank}`);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4))}px`;
  }

  draw();
  place.on("plotly_hover", ({ points, event }) => {
    const n = points[0].customdata;
    showTip(n, event);
    mark(data.label[n]);
  });
  place.on("plotly_unhover", () => {
    tip.hidden = true;
    mark(chosenClass());
  });
  place.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change || "yaxis.range[0]" in change) {
      const { xaxis, yaxis } = place.layout;
      show([...xaxis.range], [...yaxis.range]);
    }
  });
  place.on("plotly_doubleclick", showAll);

  const input = document.getElementById("class");
  const chosenClass = () => {
    const label = data.names.indexOf(input.value);
    return label < 0 ? null : label;
  };
  input.addEventListener("input", () => {
    mark(chosenClass());
    const count = marked === null ? 0 : data.label.filter((label) => label === marked).length;
    document.getElementById("marked").textContent = marked === null ? "" : `${count} marked`;
  });
  document.getElementById("zoom-in").addEventListener("click", () => move(0.6));
  document.getElementById("zoom-out").addEventListener("click", () => move(1 / 0.6));
  document.getElementById("zoom-all").addEventListener("click", showAll);
  pictures.addEventListener("click", () => {
    pictures.setAttribute("aria-pressed", pictures.getAttribute("aria-pressed") !== "true");
    draw();
  });
  const keys = {
    "+": () => move(0.6), "=": () => move(0.6), "-": () => move(1 / 0.6), 0: showAll,
    ArrowLeft: () => move(1, -0.15), ArrowRight: () => move(1, 0.15), ArrowUp: () => move(1, 0, 0.15), ArrowDown: () => move(1, 0, -0.15),
  };
  place.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  drawn.push(draw);
  addEventListener("resize", draw);
});
