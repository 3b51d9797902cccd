// How to take part: serve some layers, or use the model.

import { commandPanel } from "../commands.js";
import { ROOT } from "../server.js";

const WHO = {
  open: "Stop whenever you like.",
  invite: "You need a personal code from whoever began it; the program asks for it.",
  hub: "You need a Hugging Face account that is let in, and a read-only token of it.",
};

export function takePart() {
  const { element, show } = commandPanel({
    title: "Take part",
    label: "How to take part",
    choose: "How",
    ways: { serve: "Serve it", use: "Use it" },
  });

  function update(state) {
    const address = ROOT.href.replace(/\/$/, "");
    const where = state.organizer ? `${address}#${state.organizer}` : address;
    const install = state.wheel ? `pip install "${address}/wheel/${state.wheel}"\n` : "";
    let note = WHO[state.access];
    if (state.refusal === "starting") note = "It opens as soon as the first server is ready.";
    else if (/^(localhost|127\.|\[::1\])/.test(ROOT.hostname)) note = "This address works on this computer only.";
    const python =
      "from dedloc_kit.inference.model import AutoDistributedModelForCausalLM\n" +
      `model = AutoDistributedModelForCausalLM.from_pretrained("${where}")`;
    show({ serve: `${install}dedloc serve "${where}"`, use: `${install && `%${install}`}${python}` }, note);
  }

  return { element, update };
}
