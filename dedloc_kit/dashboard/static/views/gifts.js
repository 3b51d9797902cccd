// Gifts of their own kind, which stand beside the samples of the others and are never added to them: who lent a line, and
// who hosted experts.

import { build, keyed, section, setName, setText } from "../dom.js";
import { ago, brief, bytes, count, duration, plural } from "../format.js";
import { nameOf, pageOf, tally } from "../names.js";
import { keepAsking } from "../run.js";
import { addressOf } from "../server.js";

const seen = (giver) => (giver.active ? "here now" : ago(giver.last_seen));

export const lenderList = (signal) =>
  list("Lent lines", "lenders", "their lines carry what the volunteers give each other", signal, [
    ["Carried", "number", (lender) => bytes(lender.bytes)],
    ["Time lent", "number given", (lender) => duration(Math.max(1, lender.seconds))],
    ["Steps", "number", (lender) => plural(lender.steps, "step")],
    ["Last seen", "seen", seen],
  ]);

export const hostList = (signal) =>
  list("Hosts of experts", "hosts", "their machines answer what the others’ models ask", signal, [
    ["Tokens answered", "number", (host) => brief(host.tokens), (host) => `${count(host.tokens)}, as trainers confirm`],
    ["Here since", "since", (host) => ago(host.first_seen)],
    ["Last seen", "seen", seen],
  ]);

/** A table of all who gave something, as `api/WHAT` tells them; nothing while that is nobody. */
function list(title, what, note, signal, columns) {
  const body = build("tbody");
  const titles = [["Name", "who"], ...columns].map(([text, kind]) => build("th", { scope: "col", class: kind, text }));
  const scroll = build(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": `${title} in a table` },
    build("table", { class: "board" }, build("thead", {}, build("tr", {}, ...titles)), body),
  );
  const part = section(title, scroll);
  part.section.hidden = true;
  const file = build("a", { href: addressOf(`api/export/${what}.csv`), text: "CSV", download: true });
  part.note.append(`${note}, `, file);
  keepAsking(
    () => `api/${what}`,
    ({ status, values }) => {
      if (status !== 200) return;
      const givers = values[what];
      part.section.hidden = !givers.length;
      const names = tally(givers);
      keyed(
        body,
        givers,
        (giver) => giver.peer,
        (giver) => row(giver, columns),
        (element, giver) => {
          const [who, ...cells] = element.children;
          setName(who.firstChild, nameOf(giver, names));
          columns.forEach(([, , text, full], index) => {
            setText(cells[index], text(giver));
            if (full) cells[index].title = full(giver);
          });
        },
      );
    },
    signal,
  );
  return part.section;
}

function row(giver, columns) {
  const link = build("a", { class: "name", href: pageOf(giver.peer) });
  const cells = columns.map(([, kind]) => build("td", { class: kind }));
  return build("tr", {}, build("th", { class: "who", scope: "row" }, link), ...cells);
}
