// A question before what cannot be undone.

import { build, setText } from "../dom.js";

/** `{element, open(text)}`: nothing happens unless whoever is asked takes `go`; `text` may change from time to time. */
export function confirmation(title, text, stay, go, act) {
  const id = `ask-${title.toLowerCase().replace(/\W+/g, "-")}`;
  const said = build("p", { text });
  const choose = () => {
    element.close();
    act();
  };
  const element = build(
    "dialog",
    { "aria-labelledby": id },
    build("h2", { id, text: title }),
    said,
    build(
      "p",
      { class: "buttons" },
      build("button", {
        type: "button",
        class: "plain",
        text: stay,
        autofocus: true,
        on: { click: () => element.close() },
      }),
      build("button", { type: "button", class: "danger", text: go, on: { click: choose } }),
    ),
  );

  function open(now) {
    if (now) setText(said, now);
    element.showModal();
  }

  return { element, open };
}
