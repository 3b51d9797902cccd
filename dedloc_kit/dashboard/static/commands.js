// Commands to be copied, of which one way is chosen.

import { build, choices, setText } from "./dom.js";

/**
 * A panel: `{element, show}`. `ways` are their names by key, the first one is chosen; `show(texts, note)` fills in what
 * is to be copied, by key, and a remark.
 */
export function commandPanel({ title, label, choose, ways }) {
  let texts = {};
  let [way] = Object.keys(ways);
  const code = build("pre", { class: "code", tabindex: "0", "aria-label": label, id: "join-command" });
  const copy = build("button", {
    type: "button",
    class: "primary",
    text: "Copy",
    on: { click: () => copyText(code, copy) },
  });
  const note = build("p", { class: "note" });
  const chooser = choices(choose, ways, way, (chosen) => {
    way = chosen;
    setText(code, texts[way]);
  });
  const element = build(
    "section",
    { class: "join", "aria-labelledby": "join-title" },
    build("div", { class: "join-head" }, build("h2", { id: "join-title", text: title }), chooser),
    code,
    build("div", { class: "join-foot" }, copy, note),
  );

  function show(newTexts, remark) {
    texts = newTexts;
    setText(code, texts[way]);
    setText(note, remark);
  }

  return { element, show };
}

async function copyText(code, button) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(code.textContent); // only there on https and on this computer
  } catch {
    getSelection().selectAllChildren(code);
    copied = document.execCommand("copy");
  }
  button.textContent = copied ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (button.textContent = "Copy"), 2_000);
}
