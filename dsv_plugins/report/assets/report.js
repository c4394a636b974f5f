"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const element = (id) => document.getElementById(id);
  const buttons = [...document.querySelectorAll("#strip button")];
  const plots = [...document.querySelectorAll("#panels .plot")];
  const rows = [...document.querySelectorAll("#candidates tbody tr")];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true };
  const sets = {
    train: { color: "#0072B2", dark: "#56B4E9", symbol: "circle" },
    augmented: { color: "#E69F00", dark: "#E69F00", symbol: "x" },
    test: { color: "#009E73", dark: "#2CC79A", symbol: "diamond-open" },
    "held-out": { color: "#0072B2", dark: "#56B4E9", symbol: "circle" },
  };
  let current = data.chosen;
  let projection = "pca";

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (name) => (dark.matches ? sets[name].dark : sets[name].color);

  // The darker colours of the palette are hard to see on a dark page.
  const lighter = { "#0072B2": "#56B4E9", "#56B4E9": "#F0E442", "#009E73": "#2CC79A", "#D55E00": "#FF8A3D" };
  function readable(trace) {
    const shown = dark.matches ? lighter[trace.line.color] || trace.line.color : trace.line.color;
    return { ...trace, line: { ...trace.line, color: shown }, marker: { ...trace.marker, color: shown } };
  }

  function layout(more) {
    const axis = { gridcolor: variable("--line"), zeroline: false, linecolor: variable("--line"), automargin: true };
    const { xaxis, yaxis, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: variable("--text"), family: "system-ui, sans-serif", size: 12 },
      margin: { l: 46, r: 14, t: 12, b: 42 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hovermode: "closest", dragmode: false,
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
    };
  }

  function drawPanels() {
    data.panels.forEach((panel, place) => {
      const plot = plots[place];
      // The ring comes first, so that it neither hides a marker nor takes its clicks.
      const ring = {
        x: [], y: [], mode: "markers", hoverinfo: "skip", showlegend: false, cliponaxis: false,
        marker: { symbol: "circle-open", size: 24, color: variable("--text"), line: { width: 2 } },
      };
      panel.data.filter((trace) => trace.yaxis !== "y2").forEach((trace) => {
        const found = trace.customdata.indexOf(current);
        if (found >= 0) { ring.x.push(trace.x[found]); ring.y.push(trace.y[found]); }
      });
      const traces = [ring, ...panel.data.map(readable)];
      const shown = layout({
        xaxis: panel.layout.xaxis, margin: { l: 46, r: panel.layout.yaxis2 ? 46 : 14, t: 30, b: 42 },
        showlegend: panel.data.length > 1,
      });
      if (panel.layout.yaxis2) shown.yaxis2 = { ...panel.layout.yaxis2, automargin: true };
      Plotly.react(plot, traces, shown, config);
    });
  }

  function drawEmbedding(candidate) {
    element("tsne").disabled = !candidate.tsne;
    const used = projection === "tsne" && candidate.tsne ? "tsne" : "pca";
    for (const name of ["pca", "tsne"]) element(name).setAttribute("aria-pressed", String(name === used));
    const traces = Object.entries(candidate[used]).map(([name, [x, y]]) => ({
      x, y, name, mode: "markers", hoverinfo: "name",
      marker: { color: colour(name), symbol: sets[name].symbol, size: 6, opacity: 0.8 },
    }));
    const bare = { showticklabels: false };
    Plotly.react("embedding", traces, layout({ xaxis: bare, yaxis: bare }), config);
  }

  function drawHistogram(target, histogram, more = {}) {
    const { centres, ...shares } = histogram;
    const traces = Object.entries(shares).map(([name, y]) => ({
      // Relative to its peak: a set that lies in one bin would press the others flat.
      x: centres, y: y.map((share) => share / (Math.max(...y) || 1)), customdata: y, name, mode: "lines", fill: "tozeroy",
      line: { shape: "hvh", color: colour(name), width: 2, dash: name === "augmented" ? "dot" : "solid" },
      fillcolor: colour(name) + "2E", hovertemplate: "%{x:.3g}: %{customdata:.1%}",
    }));
    const axes = { xaxis: { title: { text: "score" } }, yaxis: { showticklabels: false, rangemode: "tozero" } };
    Plotly.react(target, traces, layout({ ...axes, ...more }), config);
  }

  function drawModel() {
    if (!data.model) return;
    const x = data.model.threshold;
    const line = { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: variable("--star"), width: 2 } };
    const note = { x, y: 1, yref: "paper", yanchor: "bottom", text: "flagged →", xanchor: "left", showarrow: false, font: { color: variable("--star") } };
    drawHistogram("model-scores", data.model.histogram, { shapes: [line], annotations: [note], margin: { l: 46, r: 14, t: 30, b: 42 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 1, xanchor: "right" } });
  }

  function drawCurve(candidate) {
    const [x, y] = candidate.curve;
    element("curve").closest("figure").hidden = !x.length;
    if (!x.length) return;
    const trace = { x, y, mode: "lines", line: { color: colour("train"), width: 2 }, hovertemplate: "update %{x}: %{y:.3g}<extra></extra>" };
    Plotly.react("curve", [trace], layout({ xaxis: { title: { text: "update" } }, yaxis: { rangemode: "tozero" } }), config);
  }

  function showImages(id, images, heated = {}) {
    element(id).replaceChildren(...images.map(([index, score]) => {
      const cell = document.createElement("div");
      const image = document.createElement("img");
      image.src = heated[index] ?? data.thumbnails[index];
      image.alt = image.title = data.files[index];
      cell.append(image, String(score));
      return cell;
    }));
  }

  function showFacts(facts) {
    element("facts").replaceChildren(...facts.map(([name, value]) => {
      const pair = document.createElement("div");
      const term = document.createElement("dt");
      const description = document.createElement("dd");
      term.textContent = name;
      description.textContent = value;
      pair.append(term, description);
      return pair;
    }));
  }

  function draw() {
    const candidate = data.candidates[current];
    element("panel-name").textContent = candidate.label;
    showFacts(candidate.facts);
    drawPanels();
    drawEmbedding(candidate);
    drawHistogram("histogram", candidate.histogram);
    drawCurve(candidate);
    showImages("highest", candidate.highest, candidate.heated);
    showImages("lowest", candidate.lowest);
  }

  function select(place) {
    current = place;
    buttons.forEach((button, index) => {
      button.setAttribute("aria-checked", String(index === place));
      button.tabIndex = index === place ? 0 : -1;
    });
    rows.forEach((row) => row.setAttribute("aria-selected", String(row.dataset.candidate === String(place))));
    const strip = element("strip");
    const { offsetLeft, offsetWidth } = buttons[place];
    strip.scrollLeft = offsetLeft - strip.offsetLeft - (strip.clientWidth - offsetWidth) / 2;
    draw();
  }

  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  element("strip").addEventListener("keydown", (event) => {
    const last = buttons.length - 1;
    let place = null;
    if (event.key in steps) place = Math.min(last, Math.max(0, current + steps[event.key]));
    if (event.key === "Home") place = 0;
    if (event.key === "End") place = last;
    if (place === null) return;
    event.preventDefault();
    select(place);
    buttons[place].focus({ preventScroll: true });
  });
  buttons.forEach((button, place) => button.addEventListener("click", () => select(place)));
  rows.filter((row) => row.dataset.candidate).forEach((row) => {
    row.addEventListener("click", () => select(Number(row.dataset.candidate)));
  });
  for (const name of ["pca", "tsne"]) {
    element(name).addEventListener("click", () => { projection = name; drawEmbedding(data.candidates[current]); });
  }

  const headers = [...document.querySelectorAll("#candidates thead th")];
  headers.forEach((header, column) => header.querySelector("button").addEventListener("click", () => {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    headers.forEach((other) => other.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const value = (row) => row.children[column].dataset.value;
    const compare = (one, other) => {
      if (value(one) === "" || value(other) === "") return (value(one) === "") - (value(other) === "");
      const difference = Number(value(one)) - Number(value(other));
      return (ascending ? 1 : -1) * (Number.isNaN(difference) ? value(one).localeCompare(value(other)) : difference);
    };
    document.querySelector("#candidates tbody").append(...rows.toSorted(compare));
  }));

  select(current);
  drawModel();
  plots.forEach((plot) => {
    plot.on("plotly_click", (event) => {
      const place = event.points[0].customdata;
      if (place !== undefined) select(place);
    });
  });
  dark.addEventListener("change", () => { draw(); drawModel(); });
})();
