// A long list in parts, of which the server gives one at a time.

import { build, setText } from "./dom.js";
import { count } from "./format.js";

/**
 * Buttons to turn the pages of a list with so many rows on each: `{element, offset, first, show}`. `turned()` is called
 * after a turn, `first()` goes back to the first page, and `show(total, shown, all)` says where the reader is, with
 * `all` in words for how many there are.
 */
export function pager(size, turned) {
  let at = 0;
  const back = build("button", { type: "button", class: "plain", text: "Back", on: { click: () => turn(-size) } });
  const next = build("button", { type: "button", class: "plain", text: "Next", on: { click: () => turn(size) } });
  const where = build("p", { class: "note", role: "status" });
  const element = build("div", { class: "pages" }, back, where, next);

  function turn(by) {
    at = Math.max(0, at + by);
    turned();
  }

  function show(total, shown, all) {
    back.disabled = at === 0;
    next.disabled = at + size >= total;
    setText(where, total ? `${count(at + 1)} to ${count(at + shown)} of ${all}` : all);
  }

  return { element, show, offset: () => at, first: () => (at = 0) };
}
