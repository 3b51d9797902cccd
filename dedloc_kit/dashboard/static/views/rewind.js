// The way out of a training that has diverged: the next global step takes over an earlier state.

import { build, keyed, section, setText } from "../dom.js";
import { ago, count, loss as lossText } from "../format.js";
import { confirmation } from "./confirmation.js";

const UNTRAINED = "0";
const MAX_RATE = 10;

/** A checkpoint in words. */
export function nameOfCheckpoint({ step, loss, best, ruined }) {
  const measured = loss === null ? "" : `, held-out loss ${lossText(loss)}`;
  return `Global step ${count(step)}${measured}${best ? ", the best so far" : ""}${ruined ? ", diverged" : ""}`;
}

export function rewindForm(order) {
  const present = build("p", { class: "standing" });
  const step = build("select", { id: "rewind-step" });
  const rate = build("input", {
    id: "rewind-rate",
    type: "number",
    min: "0",
    max: String(MAX_RATE),
    step: "any",
    value: "1",
    required: true,
  });
  const go = build("button", { type: "submit", class: "danger", text: "Go back" });
  const dialog = confirmation("Go back?", "", "Go on training", "Go back there", () =>
    order("rollback", { step: Number(step.value), rate: Number(rate.value) }),
  );
  const form = build(
    "form",
    {
      on: {
        submit: (event) => {
          event.preventDefault();
          dialog.open(question(Number(step.value), Number(rate.value)));
        },
      },
    },
    build("label", { for: step.id, text: "To the state of" }),
    step,
    build("label", { for: rate.id, text: "With so many times its learning rate, such as 0.5 if the training diverged" }),
    rate,
    build("p", { class: "buttons" }, go),
  );
  const part = section("Go back to a checkpoint", present, form, dialog.element);

  function update({ checkpoints, rewind, finishing }) {
    setText(
      present,
      rewind
        ? `The next global step takes over ${stateOf(rewind.checkpoint)}.`
        : "If the training has diverged, let the next global step take over an earlier state.",
    );
    const kept = checkpoints.filter(({ ruined }) => !ruined);
    keyed(
      step,
      [...kept.map((each) => [String(each.step), each]), [UNTRAINED, null]],
      ([value]) => value,
      ([value]) => build("option", { value }),
      (option, [, each]) => setText(option, each ? `${nameOfCheckpoint(each)}, ${ago(each.time)}` : "The untrained model"),
    );
    go.disabled = Boolean(rewind) || finishing;
  }

  return { element: part.section, update };
}

const stateOf = (step) => (step ? `the state of global step ${count(step)}` : "the untrained model");

function question(step, rate) {
  return (
    `The next global step takes over ${stateOf(step)}${rate === 1 ? "" : `, with ${rate} times its learning rate`}, ` +
    "on the machines of all. Its number goes on from the newest, and what everyone has given stays on record; " +
    "what is being computed at that moment is dropped."
  );
}
