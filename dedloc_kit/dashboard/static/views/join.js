// How to take part: the cell or the commands, to be copied.

import { build, choices, setText } from "../dom.js";
import { ROOT } from "../server.js";

const WHO = {
  open: "One cell joins, with a free GPU too.",
  invite: "You need a personal code from the organizer; the program asks for it.",
  hub: "You need a Hugging Face account that the organizer lets in, and a read-only token of it.",
};

export function joinPanel() {
  const address = ROOT.href.replace(/\/$/, "");
  const ways = { notebook: "", terminal: "" };
  let way = "notebook";
  const code = build("pre", {
    class: "code",
    tabindex: "0",
    "aria-label": "How to join",
    id: "join-command",
  });
  const copy = build("button", {
    type: "button",
    class: "primary",
    text: "Copy",
    on: { click: () => copyText(code, copy) },
  });
  const note = build("p", { class: "note" });
  const title = build("h2", { id: "join-title", text: "Train with us" });
  const choose = choices("Where", { notebook: "Notebook", terminal: "Terminal" }, "notebook", (chosen) => {
    way = chosen;
    setText(code, ways[way]);
  });
  const element = build(
    "section",
    { class: "join", "aria-labelledby": "join-title" },
    build("div", { class: "join-head" }, title, choose),
    code,
    build("div", { class: "join-foot" }, copy, note),
  );

  function update(state) {
    const install = state.wheel ? `pip install "${address}/wheel/${state.wheel}"\n` : "";
    ways.notebook = `${install && `%${install}`}from dedloc_kit import join\njoin("${address}")`;
    ways.terminal = `${install}dedloc join ${address}`;
    setText(code, ways[way]);
    let text = `${WHO[state.access]} Stop whenever you like.`;
    if (state.refusal === "starting") text = "Joining opens as soon as the coordinator is ready.";
    else if (state.refusal === "full") text = "As many train already as this run has room for. Please come back later.";
    else if (/^(localhost|127\.|\[::1\])/.test(ROOT.hostname))
      text = "Stop whenever you like. This address works on this computer only.";
    setText(note, text);
    element.hidden = state.refusal === "over";
  }

  return { element, update };
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
