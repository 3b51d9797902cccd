// Pictures with those that the model takes for most similar, now and before.

import { build } from "../dom.js";
import { count } from "../format.js";
import { pictures } from "./pictures.js";

/** Of `[{step, samples}]`, oldest first, the newest in full; `here` has the digests of the pictures that can be had. */
export function neighbours(moments, here) {
  const { picture, note } = pictures(here);
  const list = build("ul", { class: "neighbours" });

  const shown = ({ picture: digest, label }, told = "") =>
    picture(digest, [label || "no class known", told].filter(Boolean).join(", "));

  function row({ label, nearest }, full) {
    return build(
      "ol",
      { "aria-label": "The most similar others" },
      ...nearest.map((one) =>
        build(
          "li",
          { class: label && one.label === label ? "right" : null },
          shown(one, `similarity ${one.similarity.toFixed(2)}`),
          full ? build("bdi", { class: "label", text: one.label }) : null,
          full ? build("span", { class: "similarity", text: one.similarity.toFixed(2) }) : null,
        ),
      ),
    );
  }

  for (const sample of moments.at(-1).samples) {
    const before = earlier(moments.slice(0, -1), sample);
    list.append(
      build(
        "li",
        {},
        build("figure", {}, shown(sample), build("figcaption", {}, build("bdi", { text: sample.label }))),
        build("div", { class: "row now" }, build("p", { class: "when", text: verdict(sample) }), row(sample, true)),
        ...before.map(({ step, sample: was }) =>
          build(
            "div",
            { class: "row before" },
            build("p", { class: "when", text: step ? `step ${count(step)}` : "untrained" }),
            row(was, false),
          ),
        ),
      ),
    );
  }
  return [list, ...note()];
}

function verdict({ label, nearest }) {
  if (!label) return "Most similar now";
  const alike = nearest.filter((one) => one.label === label).length;
  return `Most similar now: ${alike} of ${nearest.length} of its class`;
}

/** What was nearest on the way, where that was something else: every evaluation asks for the same pictures. */
function earlier(moments, { picture }) {
  const found = [];
  for (const { step, samples } of moments) {
    const sample = samples.find((one) => one.picture === picture);
    const last = found.at(-1)?.sample;
    if (sample && !(last && nearestOf(last) === nearestOf(sample))) found.push({ step, sample });
  }
  return found.toReversed();
}

const nearestOf = (sample) => sample.nearest.map((one) => one.picture).join();
