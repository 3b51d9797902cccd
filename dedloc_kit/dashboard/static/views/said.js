// What the model can do now, beside what it could do before.

import { build, section, setText } from "../dom.js";
import { count } from "../format.js";
import { load } from "../server.js";
import { fillMask } from "./fill_mask.js";

// What shares of the held-out samples mean in words: now, and at the run's first evaluation.
const SKILLS = {
  "masked accuracy": (now, first) =>
    `Of 100 hidden words it guesses ${now}${first === undefined ? "" : `, at first ${first}`}.`,
  "sentence order accuracy": (now) =>
    `Of 100 pairs of passages it tells for ${now} which came first; chance alone would give 50.`,
};

export function saidPanel(signal) {
  const skills = build("ul", { class: "skills" });
  const samples = build("div", {});
  const part = section("What it can do", skills, samples);
  let shown = -1; // the global step of the evaluation that is shown

  async function update(state) {
    const { evaluation } = state;
    part.section.hidden = !evaluation || (!Object.keys(evaluation.last.metrics).length && !state.samples.length);
    if (!evaluation || evaluation.last.step === shown) return;
    shown = evaluation.last.step;
    setText(part.note, `on data it has not seen, at step ${count(shown)}`);
    skills.replaceChildren(...sentences(evaluation).map((text) => build("li", { text })));
    const values = await load("api/samples");
    if (signal.aborted) return;
    const moments = values?.moments.filter((moment) => moment.samples.length) ?? [];
    // Each task's samples have a look of their own; so far there are sentences with a gap.
    samples.replaceChildren(fillMask(moments.length ? moments : [{ step: shown, samples: state.samples }]));
  }

  return { element: part.section, update };
}

function sentences({ first, last }) {
  const inHundred = (share) => (share === undefined ? undefined : Math.round(100 * share));
  return Object.entries(last.metrics).map(([name, share]) => {
    const before = first.step < last.step ? first.metrics[name] : undefined;
    const told = SKILLS[name] ?? ((now) => `${name}: ${now} of 100.`);
    return told(inHundred(share), inHundred(before));
  });
}
