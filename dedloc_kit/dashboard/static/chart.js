// Training and evaluation loss over global steps: a plotly chart, the same as a table, and one line about it.

import { count, loss } from "./format.js";

const Plotly = window.Plotly;
const TABLE_ROWS = 25;

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Draws `{steps, evaluations}` into `element`; call it again whenever they or the colours have changed. */
export function drawChart(element, { steps, evaluations }) {
  const points = steps.filter((step) => step.loss !== null);
  const traces = [
    {
      name: "training",
      x: points.map((step) => step.step),
      y: points.map((step) => step.loss),
      mode: points.length < 3 ? "markers" : "lines",
      line: { color: token("--training"), width: 1.75 },
      marker: { color: token("--training"), size: 6 },
      hovertemplate: "%{y:.3f}",
    },
    {
      name: "evaluation",
      x: evaluations.map((evaluation) => evaluation.step),
      y: evaluations.map((evaluation) => evaluation.loss),
      mode: evaluations.length <= 40 ? "lines+markers" : "lines",
      line: { color: token("--evaluation"), width: 2.25 },
      marker: { color: token("--evaluation"), size: 5 },
      hovertemplate: "%{y:.3f}",
    },
  ];
  const axis = {
    color: token("--muted"),
    gridcolor: token("--line"),
    linecolor: token("--line"),
    zeroline: false,
    fixedrange: true,
    automargin: true,
    tickfont: { size: 12 },
  };
  const layout = {
    autosize: true,
    margin: { l: 40, r: 8, t: 8, b: 36 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: token("--sans"), color: token("--ink") },
    showlegend: false,
    dragmode: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: token("--raised"), bordercolor: token("--line"), font: { color: token("--ink") } },
    xaxis: {
      ...axis,
      showgrid: false,
      tickformat: ",d",
      nticks: 6,
      rangemode: "nonnegative",
      hoverformat: ",d",
      unifiedhovertitle: { text: "global step %{x}" },
      title: { text: "global step", font: { size: 12 }, standoff: 8 },
    },
    yaxis: { ...axis, nticks: 6 },
  };
  Plotly.react(element, traces, layout, { displayModeBar: false, responsive: true, doubleClick: false });
  element.setAttribute("aria-label", describe(points, evaluations));
}

/** Fills the body of a table with evenly spaced points of the curves, newest first. */
export function fillTable(body, { steps, evaluations }) {
  const every = Math.max(1, Math.ceil(steps.length / TABLE_ROWS));
  const shown = steps.filter((_, index) => (steps.length - 1 - index) % every === 0).reverse();
  const rows = shown.map((step) => {
    const evaluation = evaluations.findLast((candidate) => candidate.step <= step.step);
    const row = document.createElement("tr");
    const texts = [count(step.step), loss(step.loss), evaluation ? loss(evaluation.loss) : "–", count(step.samples)];
    texts.forEach((text, index) => {
      const cell = document.createElement(index === 0 ? "th" : "td");
      if (index === 0) cell.scope = "row";
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  });
  body.replaceChildren(...rows);
}

function describe(points, evaluations) {
  if (!points.length) return "Loss over global steps: nothing yet.";
  const first = points[0];
  const last = points.at(-1);
  let text = `Training loss from ${loss(first.loss)} at global step ${count(first.step)} to ${loss(last.loss)} at ${count(last.step)}.`;
  if (evaluations.length) {
    const end = evaluations.at(-1);
    text += ` Evaluation loss from ${loss(evaluations[0].loss)} to ${loss(end.loss)} at ${count(end.step)}.`;
  }
  return text;
}
