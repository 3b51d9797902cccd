// What the model scores by standard suites of questions, beside published models.

import { build, section, setText } from "../dom.js";
import { count, plural } from "../format.js";

const isShare = (metric) => !/^(bits per byte|perplexity)/.test(metric);

export function suitesPanel() {
  const rows = build("tbody");
  const head = ["Suite", "Model", "Score", "Share"].map((text) => build("th", { scope: "col", text }));
  const table = build("table", { class: "board" }, build("thead", {}, build("tr", {}, ...head)), rows);
  const scroll = { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Scores by standard suites" };
  const part = section("Beside published models", build("div", scroll, table));
  let shown = "";

  function update({ suites }) {
    part.section.hidden = !suites.length;
    const now = JSON.stringify(suites);
    if (now === shown) return;
    shown = now;
    setText(part.note, suites.some((suite) => isShare(suite.metric)) ? "shares in percent, with their standard errors" : "");
    rows.replaceChildren(...suites.flatMap(rowsOf));
  }

  return { element: part.section, update };
}

function rowsOf({ metric, questions, first, last, references }) {
  const own = last ? [[`this one, at step ${count(last.step)}`, last]] : [];
  if (first && first.step < last.step) own.unshift([`this one, at step ${count(first.step)}`, first]);
  const all = [...own, ...references.map((reference) => [reference.model, reference])];
  return all.map(([model, score], index) => {
    const name = index ? "" : `${metric}, ${plural(questions, "question")}`;
    return build(
      "tr",
      {},
      build("th", { scope: "row" }, build("bdi", { text: name })),
      build("td", {}, build("bdi", { text: model })),
      build("td", { text: written(metric, score) }),
      build("td", {}, isShare(metric) ? build("meter", { min: 0, max: 1, value: score.mean, "aria-hidden": "true" }) : null),
    );
  });
}

function written(metric, { mean, spread }) {
  const number = (value) => (isShare(metric) ? (100 * value).toFixed(1) : value.toFixed(3));
  return spread === null ? number(mean) : `${number(mean)} ± ${number(spread)}`;
}
