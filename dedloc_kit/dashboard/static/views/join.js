// How to take part: the cell or the commands, to be copied.

import { commandPanel } from "../commands.js";
import { ROOT } from "../server.js";

const WHO = {
  open: "One cell joins, with a free GPU too.",
  invite: "You need a personal code from the organizer; the program asks for it.",
  hub: "You need a Hugging Face account that the organizer lets in, and a read-only token of it.",
};

export function joinPanel() {
  const address = ROOT.href.replace(/\/$/, "");
  const { element, show } = commandPanel({
    title: "Train with us",
    label: "How to join",
    choose: "Where",
    ways: { notebook: "Notebook", terminal: "Terminal" },
  });

  function update(state) {
    const where = state.organizer ? `${address}#${state.organizer}` : address;
    const install = state.wheel ? `pip install "${address}/wheel/${state.wheel}"\n` : "";
    let text = `${WHO[state.access]} Stop whenever you like.`;
    if (state.refusal === "starting") text = "Joining opens as soon as the coordinator is ready.";
    else if (state.refusal === "full") text = "As many train already as this run has room for. Please come back later.";
    else if (/^(localhost|127\.|\[::1\])/.test(ROOT.hostname))
      text = "Stop whenever you like. This address works on this computer only.";
    show(
      {
        notebook: `${install && `%${install}`}from dedloc_kit import join\njoin("${where}")`,
        terminal: `${install}dedloc join ${where}`,
      },
      text,
    );
    element.hidden = state.refusal === "over";
  }

  return { element, update };
}
