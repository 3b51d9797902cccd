// Who was to come to a global step and does not count in it, and why, as the coordinator saw it.

import { build, keyed, section, setText } from "../dom.js";
import { ago, count, plural } from "../format.js";
import { nameOf, tally } from "../names.js";

/** The newest such steps: `{element, update}`; the names open on demand. */
export function leftOut() {
  const list = build("ul", { class: "left-out" });
  const part = section("Left out of a step", list);
  part.section.hidden = true;

  function update({ left_out: steps, left_out_count: times }) {
    part.section.hidden = !steps.length;
    setText(part.note, `${plural(times, "time")} so far; why is told as the coordinator saw it`);
    keyed(list, steps, ({ step }) => step, item, fill);
  }

  return { element: part.section, update };
}

function item() {
  const summary = build("summary", {}, build("span"), build("span", { class: "note" }));
  return build("li", {}, build("details", {}, summary, build("ul")));
}

function fill(element, { step, time, count: all, some }) {
  const [summary, names] = element.firstChild.children;
  setText(summary.firstChild, `Step ${count(step)}: ${plural(all, "peer")}`);
  setText(summary.lastChild, ago(time));
  const known = some.filter(({ name }) => name !== null);
  const same = tally(known);
  const lines = some.map((peer) => ({ key: peer.peer, text: `${called(peer, same)} ${peer.why}` }));
  const more = all - some.length;
  if (more > 0) lines.push({ key: "", text: `and ${plural(more, "more peer")}` });
  keyed(
    names,
    lines,
    ({ key }) => key,
    () => build("li", {}, build("bdi")),
    (line, { text }) => setText(line.firstChild, text),
  );
}

const called = (peer, same) => (peer.name === null ? `peer …${peer.peer.slice(-4)}` : nameOf(peer, same));
