// Who lent a line: a gift of its own kind, beside the samples of the others.

import { build, keyed, section, setName, setText } from "../dom.js";
import { ago, bytes, duration, plural } from "../format.js";
import { nameOf, tally } from "../names.js";
import { keepAsking } from "../run.js";

const COLUMNS = [
  ["Name", "who"],
  ["Carried", "number"],
  ["Time lent", "number given"],
  ["Steps", "number"],
  ["Last seen", "seen"],
];

export function lenderList(signal) {
  const body = build("tbody");
  const head = build("tr", {}, ...COLUMNS.map(([text, kind]) => build("th", { scope: "col", class: kind, text })));
  const scroll = build(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": "Lent lines in a table" },
    build("table", { class: "board" }, build("thead", {}, head), body),
  );
  const part = section("Lent lines", scroll);
  part.section.hidden = true;
  setText(part.note, "their lines carry what the volunteers give each other");
  keepAsking(
    () => "api/lenders",
    ({ status, values }) => {
      if (status !== 200) return;
      part.section.hidden = !values.lenders.length;
      const names = tally(values.lenders);
      keyed(
        body,
        values.lenders,
        (lender) => lender.peer,
        lenderRow,
        (row, lender) => fill(row, lender, names),
      );
    },
    signal,
  );
  return part.section;
}

function lenderRow() {
  const cells = COLUMNS.map(([, kind]) => build(kind === "who" ? "th" : "td", { class: kind }));
  cells[0].scope = "row";
  cells[0].append(build("bdi", { class: "name" }));
  return build("tr", {}, ...cells);
}

function fill(row, lender, names) {
  const [who, carried, time, steps, seen] = row.children;
  setName(who.firstChild, nameOf(lender, names));
  setText(carried, bytes(lender.bytes));
  setText(time, duration(Math.max(1, lender.seconds)));
  setText(steps, plural(lender.steps, "step"));
  setText(seen, lender.active ? "here now" : ago(lender.last_seen));
}
