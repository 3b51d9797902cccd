// A table of plain texts, and one that stands beside a chart for whoever cannot see it.

import { build } from "./dom.js";

/** Fills a table's body with rows of texts; the first of each row names it. */
function fillRows(body, rows) {
  body.replaceChildren(
    ...rows.map((texts) =>
      build(
        "tr",
        {},
        ...texts.map((text, index) =>
          index === 0 ? build("th", { scope: "row" }, build("bdi", { text })) : build("td", {}, build("bdi", { text })),
        ),
      ),
    ),
  );
}

/** A table that opens on demand: `{element, refresh}`; `rows()` is asked only while it is open. */
export function tableBeside(summary, columns, rows) {
  const body = build("tbody");
  const head = build("tr", {}, ...columns.map((text) => build("th", { scope: "col", text })));
  const scroll = build(
    "div",
    { class: "table-scroll", tabindex: "0", role: "region", "aria-label": summary },
    build("table", {}, build("thead", {}, head), body),
  );
  const refresh = () => element.open && fillRows(body, rows());
  const element = build("details", { on: { toggle: refresh } }, build("summary", { text: summary }), scroll);
  return { element, refresh };
}
