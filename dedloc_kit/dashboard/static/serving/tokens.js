// Tokens a second in the last hour.

import { chart, token } from "../chart.js";
import { build, section, setText } from "../dom.js";
import { at, rate } from "../format.js";
import { tableBeside } from "../table.js";

export function tokensPanel() {
  let points = [];
  const forever = new AbortController();
  const drawing = chart(() => {
    const values = points.map((point) => point.tokens);
    const highest = Math.max(0, ...values);
    const trace = {
      x: points.map((point) => new Date(1000 * point.time)),
      y: values,
      mode: "lines",
      fill: "tozeroy",
      fillcolor: token("--training-faint"),
      line: { color: token("--training"), width: 2, shape: "hv" },
      hovertemplate: "%{y:.1f} tokens/s<extra></extra>",
    };
    return {
      traces: [trace],
      layout: {
        xaxis: { type: "date", tickformat: "%H:%M", hoverformat: "%H:%M:%S" },
        yaxis: { rangemode: "tozero" },
      },
      label: `Tokens a second in the last hour, at most ${rate(highest)}, now ${rate(values.at(-1) ?? 0)}.`,
    };
  }, forever.signal);
  drawing.element.classList.add("low");
  const table = tableBeside("These numbers in a table", ["Half a minute up to", "Tokens/s"], () =>
    points.toReversed().map((point) => [at(point.time), rate(point.tokens)]),
  );
  const empty = build("p", { class: "empty", text: "The first point comes after half a minute." });
  const part = section("Tokens a second", drawing.element, empty, table.element);
  setText(part.note, "served through all layers in the last hour, as the servers count them");

  function update({ history }) {
    const changed = history.length !== points.length || history.at(-1)?.time !== points.at(-1)?.time;
    points = history;
    drawing.element.hidden = table.element.hidden = !points.length;
    empty.hidden = points.length > 0;
    if (!changed) return;
    if (points.length) drawing.draw();
    table.refresh();
  }

  return { element: part.section, update };
}
