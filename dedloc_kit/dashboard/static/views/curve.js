// Training and evaluation loss over global steps or over time.

import { STEPS, chart, token } from "../chart.js";
import { build, choices, section, setText } from "../dom.js";
import { at, count, loss } from "../format.js";
import { run, subscribe } from "../run.js";
import { smooth } from "../smooth.js";
import { tableBeside } from "../table.js";

const TABLE_ROWS = 25;
const RECENT = 4; // the last quarter of the run

export function curve(signal) {
  const chosen = { over: "steps", scale: "linear", part: "all", smoothing: 0.6 };
  const { element: picture, draw } = chart(() => make(chosen), signal);
  const empty = build("p", { class: "empty", text: "The curve begins with the first global step." });
  const slider = build("input", {
    type: "range",
    min: "0",
    max: "0.98",
    step: "0.02",
    value: chosen.smoothing,
    id: "smoothing",
    on: {
      input: (event) => {
        chosen.smoothing = Number(event.target.value);
        draw();
      },
    },
  });
  const choose = (name) => (value) => {
    chosen[name] = value;
    draw();
  };
  const controls = build(
    "div",
    { class: "controls" },
    choices("Over", { steps: "Steps", time: "Time" }, "steps", choose("over")),
    choices("Part", { all: "Whole run", recent: "Last quarter" }, "all", choose("part")),
    choices("Scale", { linear: "Linear", log: "Log" }, "linear", choose("scale")),
    build("label", { class: "slider" }, build("span", { text: "Smoothing" }), slider),
  );
  const keys = {
    training: build("span", { class: "key training" }),
    evaluation: build("span", { class: "key evaluation" }),
    start: build("span", { class: "key start" }),
  };
  const legend = build("p", { class: "note legend" }, keys.training, keys.evaluation, keys.start);
  const beside = tableBeside(
    "The curve as a table",
    ["Global step", "Training loss", "Evaluation loss", "Samples", "Time"],
    rows,
  );
  const part = section("What it has learned", controls, picture, empty, beside.element);
  part.head.append(legend);

  let line; // what is drawn of the model that the run goes on from

  function update() {
    line = run.state?.start?.loss;
    const none = !run.history.steps.length && !run.history.evaluations.length;
    empty.hidden = !none;
    for (const one of [picture, legend, controls, beside.element]) one.hidden = none;
    if (none) return;
    const { steps, evaluations } = run.history;
    setText(keys.training, `training ${loss(steps.findLast((step) => step.loss !== null)?.loss)}`);
    setText(keys.evaluation, `evaluation ${loss(evaluations.at(-1)?.loss)}`);
    keys.evaluation.hidden = !evaluations.length;
    setText(keys.start, `the model it began from ${loss(line)}`);
    keys.start.hidden = line === undefined;
    draw();
    beside.refresh();
  }

  subscribe((what) => (what === "history" || run.state?.start?.loss !== line) && update(), signal);
  queueMicrotask(update); // the element is part of the page by then
  return { element: part.section };
}

function make(chosen) {
  const steps = run.history.steps.filter((step) => step.loss !== null);
  const { evaluations } = run.history;
  const x = chosen.over === "steps" ? (point) => point.step : (point) => new Date(1000 * point.time);
  const few = steps.length < 3;
  const smoothed = smooth(
    steps.map((step) => step.loss),
    few ? 0 : chosen.smoothing,
  );
  const raw = {
    x: steps.map(x),
    y: steps.map((step) => step.loss),
    mode: "lines",
    line: { color: token("--training-faint"), width: 1 },
    hoverinfo: "skip",
  };
  const training = {
    name: "training",
    x: raw.x,
    y: smoothed,
    customdata: raw.y,
    mode: few ? "markers" : "lines",
    line: { color: token("--training"), width: 2 },
    marker: { color: token("--training"), size: 7 },
    hovertemplate: "%{customdata:.3f}",
  };
  const evaluation = {
    name: "evaluation",
    x: evaluations.map(x),
    y: evaluations.map((point) => point.loss),
    mode: evaluations.length <= 60 ? "lines+markers" : "lines",
    line: { color: token("--evaluation"), width: 2.5 },
    marker: { color: token("--evaluation"), size: 6, symbol: "diamond" },
    hovertemplate: "%{y:.3f}",
  };
  const traces = chosen.smoothing && !few ? [raw, training, evaluation] : [training, evaluation];
  const start = run.state?.start;
  if (start) traces.push(across([...raw.x, ...evaluation.x], start.loss));
  const log = chosen.scale === "log";
  return {
    traces,
    layout: {
      // A drag zooms where it would not keep a finger from scrolling; a double click goes back.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      uirevision: `${chosen.over} ${chosen.part}`,
      xaxis: {
        ...(chosen.over === "steps" ? STEPS : { type: "date", hoverformat: "%-d %b, %H:%M" }),
        fixedrange: false,
        ...range(chosen, steps),
      },
      yaxis: { type: log ? "log" : "linear", ...(log ? { dtick: "D1", minor: {} } : {}) },
    },
    label: describe(steps, evaluations),
  };
}

/** A line at one loss, along all of these places. */
function across(places, value) {
  const ends = [places.reduce((a, b) => (b < a ? b : a)), places.reduce((a, b) => (b > a ? b : a))];
  return {
    x: ends,
    y: [value, value],
    mode: "lines",
    line: { color: token("--muted"), width: 1.5, dash: "dash" },
    hoverinfo: "skip",
  };
}

function range(chosen, steps) {
  if (chosen.part === "all" || !steps.length) return { autorange: true };
  const begin = steps[Math.floor(steps.length * (1 - 1 / RECENT))];
  const end = steps.at(-1);
  return {
    range: chosen.over === "steps" ? [begin.step, end.step] : [new Date(1000 * begin.time), new Date(1000 * end.time)],
  };
}

/** Evenly spaced points of the curves, newest first. */
function rows() {
  const { steps, evaluations } = run.history;
  const every = Math.max(1, Math.ceil(steps.length / TABLE_ROWS));
  const shown = steps.filter((_, index) => (steps.length - 1 - index) % every === 0).reverse();
  return shown.map((step) => {
    const evaluation = evaluations.findLast((one) => one.step <= step.step);
    return [count(step.step), loss(step.loss), loss(evaluation?.loss), count(step.samples), at(step.time)];
  });
}

function describe(steps, evaluations) {
  const part = (name, points) => {
    if (!points.length) return "";
    const [first, last] = [points[0], points.at(-1)];
    const ends = [first, last].map((point) => `${loss(point.loss)} at global step ${count(point.step)}`);
    return `${name} loss from ${ends[0]} to ${ends[1]}. `;
  };
  return (part("Training", steps) + part("Evaluation", evaluations)).trim() || "Loss: nothing yet.";
}
