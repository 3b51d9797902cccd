// Charts by plotly, which is large: it is loaded after the page has been painted, once, when a chart is about to be seen.

import { build } from "./dom.js";
import { addressOf } from "./server.js";

let plotly = null;

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = build("script", { src: addressOf("static/plotly-basic.min.js") });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      plotly = null; // to be tried again by the next view
      reject(new Error("plotly could not be loaded"));
    };
    const painted = () => requestAnimationFrame(() => setTimeout(() => document.head.append(script)));
    if (document.readyState === "complete") painted();
    else addEventListener("load", painted, { once: true });
  });
  return plotly;
}

/** Settled when the reader has come near the element. */
const near = (element) =>
  new Promise((resolve) => {
    const watch = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        watch.disconnect();
        resolve();
      },
      { rootMargin: "25%" },
    );
    watch.observe(element);
  });

/** A colour or font of the page's style, as plotly needs it. */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A chart in a new element: `{element, draw}`. `make()` returns `{traces, layout, label}` from what is known now, where
 * `layout` has what differs from the common one; `draw()` is called whenever there is something new.
 */
export function chart(make, signal) {
  const element = build("div", { class: "chart", role: "img" });
  let drawn = false;
  const seen = near(element);

  async function draw() {
    await seen;
    const Plotly = await loadPlotly().catch(() => null);
    if (!Plotly || signal.aborted || !element.isConnected) return;
    const { traces, layout, label } = make();
    await Plotly.react(element, traces, merged(commonLayout(), layout), {
      displayModeBar: false,
      responsive: true,
      showTips: false,
      doubleClick: "reset",
    });
    drawn = true;
    element.setAttribute("aria-label", label);
  }

  addEventListener("themechange", () => drawn && draw(), { signal });
  signal.addEventListener("abort", () => drawn && window.Plotly.purge(element));
  return { element, draw };
}

function commonLayout() {
  const axis = {
    color: token("--muted"),
    gridcolor: token("--line"),
    linecolor: token("--line"),
    zeroline: false,
    automargin: true,
    fixedrange: true,
    tickfont: { size: 12 },
  };
  return {
    autosize: true,
    margin: { l: 44, r: 8, t: 8, b: 40 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: token("--text"), color: token("--ink") },
    showlegend: false,
    dragmode: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: token("--raised"), bordercolor: token("--line"), font: { color: token("--ink"), size: 13 } },
    xaxis: { ...axis, showgrid: false, nticks: 7, tickangle: 0 },
    yaxis: { ...axis, nticks: 6 },
  };
}

function merged(base, more) {
  const result = { ...base };
  for (const [key, value] of Object.entries(more)) {
    const deep = value && typeof value === "object" && !Array.isArray(value) && base[key];
    result[key] = deep ? merged(base[key], value) : value;
  }
  return result;
}

/** An axis over global steps. */
export const STEPS = {
  tickformat: ",d",
  hoverformat: ",d",
  unifiedhovertitle: { text: "global step %{x}" },
  title: { text: "global step", font: { size: 12 }, standoff: 10 },
};
