// What the model draws for captions now, beside the real pictures, and what it drew before.

import { build } from "../dom.js";
import { count } from "../format.js";
import { pictures } from "./pictures.js";

/** Of `[{step, samples}]`, oldest first, the newest in full; `here` has the digests of the pictures that can be had. */
export function drawing(moments, here) {
  const { picture, note } = pictures(here);
  const now = moments.at(-1);

  const drawn = (digest, caption, step) =>
    picture(digest, `${caption}, ${step ? `drawn at step ${count(step)}` : "drawn untrained"}`);

  const cards = now.samples.map(({ caption, picture: digest, real }, place) => {
    const before = earlier(moments, place, caption);
    return build(
      "li",
      {},
      build("p", { class: "caption", dir: "auto", text: caption }),
      build(
        "div",
        { class: "pair" },
        build("figure", {}, drawn(digest, caption, now.step), build("figcaption", { text: "drawn now" })),
        real
          ? build(
              "figure",
              {},
              picture(real, `${caption}, the real picture`),
              build("figcaption", { text: "the real one" }),
            )
          : null,
      ),
      before.length
        ? build(
            "ol",
            { class: "drawn", "aria-label": "Drawn before" },
            ...before.map((was) =>
              build(
                "li",
                {},
                drawn(was.digest, caption, was.step),
                build("span", { text: was.step ? `step ${count(was.step)}` : "untrained" }),
              ),
            ),
          )
        : null,
    );
  });
  return [build("ul", { class: "drawing" }, ...cards), ...note()];
}

/** What it drew there on the way, where that looked different: every evaluation has the same captions in one order. */
function earlier(moments, place, caption) {
  const drawn = moments
    .map(({ step, samples }) => ({ step, sample: samples[place] }))
    .filter(({ sample }) => sample?.caption === caption)
    .map(({ step, sample }) => ({ step, digest: sample.picture }));
  return drawn.slice(0, -1).filter(({ digest }, index) => digest !== drawn[index + 1].digest);
}
