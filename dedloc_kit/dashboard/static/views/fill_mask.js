// Sentences with one word hidden: what the model puts there now, and what it put there before.

import { build } from "../dom.js";
import { count } from "../format.js";

/** Of `[{step, samples}]`, oldest first, the newest in full, each sentence with its earlier guesses. */
export function fillMask(moments) {
  const newest = moments.at(-1);
  const list = build("ul", { class: "fill-mask" });
  for (const sample of newest.samples) {
    const { before, guess, truth, after } = sample;
    const right = guess === truth;
    const word = build("mark", { class: right ? "guess right" : "guess", text: guess || "nothing" });
    const verdict = build("p", { class: "verdict" });
    verdict.append(right ? "Right now" : "It was ", right ? "" : build("bdi", { class: "truth", text: truth }));
    list.append(
      build(
        "li",
        {},
        build("p", { class: "sentence", dir: "auto" }, before, word, after),
        build("div", { class: "sample-foot" }, verdict, earlier(moments.slice(0, -1), sample)),
      ),
    );
  }
  return list;
}

/** How the guess changed on the way: every evaluation sees the same sentences. */
function earlier(moments, { before, truth, after }) {
  const guesses = [];
  for (const { step, samples } of moments) {
    const same = samples.find((one) => one.before === before && one.truth === truth && one.after === after);
    if (same && same.guess !== guesses.at(-1)?.guess) guesses.push({ step, guess: same.guess });
  }
  if (!guesses.length) return null;
  return build(
    "ol",
    { class: "earlier", "aria-label": "Its earlier guesses" },
    ...guesses.map(({ step, guess }) =>
      build(
        "li",
        {},
        build("span", { class: "when", text: step ? `step ${count(step)}` : "untrained" }),
        build("bdi", { class: guess === truth ? "was right" : "was", text: guess.trim() || "nothing" }),
      ),
    ),
  );
}
