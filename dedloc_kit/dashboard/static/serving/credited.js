// Who has computed how much for others, since the swarm began.

import { build, keyed, section, setText } from "../dom.js";
import { large, plural } from "../format.js";

const COLUMNS = [
  ["Who", "who"],
  ["Servers", "number"],
  ["Tokens × layers", "number"],
];

export function creditedPanel() {
  const body = build("tbody");
  const head = build("tr", {}, ...COLUMNS.map(([text, kind]) => build("th", { scope: "col", class: kind, text })));
  const scroll = build(
    "div",
    { class: "wide tall", tabindex: "0", role: "region", "aria-label": "What was computed for others in a table" },
    build("table", { class: "board" }, build("thead", {}, head), body),
  );
  const part = section("Computed for others", scroll);

  function update({ credited }) {
    keyed(body, credited, (one) => `${one.name}\n${one.team}`, row, fill);
    part.section.hidden = !credited.length;
    setText(part.note, credited.length ? "signed by those who were answered" : "");
  }

  return { element: part.section, update };
}

function row() {
  const cells = COLUMNS.map(([, kind]) => build(kind === "who" ? "th" : "td", { class: kind }));
  cells[0].scope = "row";
  cells[0].append(build("bdi", { class: "name" }), build("bdi", { class: "team" }));
  return build("tr", {}, ...cells);
}

function fill(element, { name, team, servers, tokens_layers: given }) {
  const [who, number, sum] = element.children;
  setText(who.children[0], name);
  setText(who.children[1], team);
  setText(number, plural(servers, "server"));
  setText(sum, large(given));
}
