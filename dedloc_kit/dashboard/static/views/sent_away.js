// Who was found to cheat, and why: told to everybody, and what came of it.

import { build, keyed, section, setName, setText } from "../dom.js";
import { day, plural } from "../format.js";
import { nameOf, tally } from "../names.js";
import { addressOf } from "../server.js";

/** The newest of them: `{element, update}`. */
export function sentAway() {
  const list = build("ul", { class: "news sent-away" });
  const all = build("a", { href: addressOf("api/export/convictions.csv"), text: "All as a table", download: true });
  const part = section("Sent away", list, all);
  part.section.hidden = true;

  function update({ sent_away: convictions, sent_away_count: times }) {
    part.section.hidden = !convictions.length;
    setText(part.note, `${plural(times, "time")} so far, for work that was found to be wrong`);
    all.hidden = times === convictions.length;
    const same = tally(convictions);
    keyed(
      list,
      convictions,
      ({ peer, time }) => `${peer} ${time}`,
      item,
      (element, conviction) => fill(element, conviction, same),
    );
  }

  return { element: part.section, update };
}

function item() {
  return build(
    "li",
    {},
    build("p", {}, build("bdi", { class: "name" }), build("span", { class: "why" })),
    build("span", { class: "note" }),
  );
}

function fill(element, conviction, same) {
  const [told, when] = element.children;
  setName(told.firstChild, conviction.name ? nameOf(conviction, same) : `peer …${conviction.peer.slice(-4)}`);
  setText(told.lastChild, conviction.why);
  const again = conviction.lifted === null ? "" : `, let in again ${day(conviction.lifted)}`;
  setText(when, day(conviction.time) + again);
}
