// The head of every view but the overview: where one is, and a sentence about it.

import { build, setText } from "../dom.js";
import { run, subscribe } from "../run.js";
import { addressOf } from "../server.js";

/** `{element, title, lede}`; the run's name above the title leads back to the overview. */
export function viewHead(text, signal) {
  const link = build("a", { href: addressOf("") }, build("bdi"));
  const title = build("h1", {}, build("bdi", { text }));
  const lede = build("p", { class: "lede" });
  const update = () => setText(link.firstChild, run.state?.name ?? "the run");
  subscribe(update, signal);
  update();
  const element = build(
    "div",
    { class: "band slim" },
    build("div", { class: "view-head" }, build("p", { class: "eyebrow" }, link), title, lede),
  );
  return { element, title: title.firstChild, lede };
}
