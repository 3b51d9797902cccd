// What the model can do now, beside what it could do before.

import { build, section, setText } from "../dom.js";
import { count } from "../format.js";
import { load } from "../server.js";
import { continuation } from "./continuation.js";
import { drawing } from "./drawing.js";
import { fillMask } from "./fill_mask.js";
import { neighbours } from "./neighbours.js";

// What shares of the held-out samples mean in words: now and at the run's first evaluation.
const SKILLS = {
  "masked accuracy": (now, first) =>
    `Of 100 hidden words it guesses ${now}${first === undefined ? "" : `, at first ${first}`}.`,
  "sentence order accuracy": (now) =>
    `Of 100 pairs of passages it tells for ${now} which came first; chance alone would give 50.`,
  "k-NN accuracy": (now, first) =>
    `Of 100 pictures it puts ${now} among their own kind${first === undefined ? "" : `, at first ${first}`}; ` +
    "nobody told it which kinds there are.",
  "true caption of 16": (now, first) =>
    `Of 16 captions it finds the right one for a picture in ${now} of 100 cases` +
    `${first === undefined ? "" : `, at first in ${first}`}; chance alone would give 6.`,
};
// The other metrics are no shares; beside them stand all of now and of the first evaluation, with the losses.
const NUMBERS = {
  "bits per byte": (now, first) =>
    `Of the 8 bits of a byte of text it has to be told ${now.toFixed(2)}, it guesses the rest` +
    `${first === undefined ? "" : `; at first it was ${first.toFixed(2)}`}.`,
  perplexity: (now, first) =>
    `It wavers between ${count(Math.round(now))} tokens for what comes next` +
    `${first === undefined ? "" : `, at first ${count(Math.round(first))}`}.`,
  "code loss without caption": (without, _, last, first) =>
    `For each piece of a picture it wavers between ${kinds(last.loss)} kinds` +
    `${first.loss === undefined ? "" : `, at first ${kinds(first.loss)}`}; without the caption between ` +
    `${kinds(without)}, with another picture's between ${kinds(last["code loss with another caption"])}.`,
};
// These stand in the sentences of others.
const TOLD_BESIDE = new Set(["code loss with another caption"]);
const kinds = (nats) => count(Math.round(Math.exp(Math.min(nats, 30))));
// Each kind of samples has a look of its own.
const LOOKS = {
  "fill-mask": (moments) => [fillMask(moments)],
  continuation: (moments) => [continuation(moments)],
  neighbours,
  drawing,
};

export function saidPanel(signal) {
  const skills = build("ul", { class: "skills" });
  const samples = build("div", { class: "held-out" });
  const part = section("What it can do", skills, samples);
  let shown = -1; // the global step of the evaluation that is shown

  async function update(state) {
    const { evaluation } = state;
    if (!evaluation) part.section.hidden = true;
    if (!evaluation || evaluation.last.step === shown) return;
    shown = evaluation.last.step;
    setText(part.note, `on data it has not seen, at step ${count(shown)}`);
    skills.replaceChildren(...sentences(evaluation).map((text) => build("li", { text })));
    const values = await load("api/samples");
    if (signal.aborted) return;
    const moments = values?.moments ?? [];
    const look = LOOKS[moments.at(-1)?.samples[0].kind];
    samples.replaceChildren(...(look ? look(moments, values.pictures) : []));
    part.section.hidden = !look && !Object.keys(evaluation.last.metrics).length;
  }

  return { element: part.section, update };
}

function sentences({ first, last }) {
  const inHundred = (share) => (share === undefined ? undefined : Math.round(100 * share));
  const now = { ...last.metrics, loss: last.loss };
  const before = first.step < last.step ? { ...first.metrics, loss: first.loss } : {};
  return Object.keys(last.metrics)
    .filter((name) => !TOLD_BESIDE.has(name))
    .map((name) => {
      if (NUMBERS[name]) return NUMBERS[name](now[name], before[name], now, before);
      const told = SKILLS[name] ?? ((share) => `${name}: ${share} of 100.`);
      return told(inHundred(now[name]), inHundred(before[name]));
    });
}
