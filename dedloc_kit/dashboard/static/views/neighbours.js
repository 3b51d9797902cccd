// Pictures with those that the model takes for most similar, now and before.

import { build } from "../dom.js";
import { count } from "../format.js";
import { addressOf } from "../server.js";

/** Of `[{step, samples}]`, oldest first, the newest in full; `here` has the digests of the pictures that can be had. */
export function neighbours(moments, here) {
  const known = new Set(here);
  const list = build("ul", { class: "neighbours" });
  let lacking = false;

  function picture({ picture: digest, label }, told = "") {
    const alt = [label || "no class known", told].filter(Boolean).join(", ");
    if (known.has(digest)) {
      const source = addressOf(`api/pictures/${digest}.webp`);
      return build("img", { src: source, alt, title: alt, width: 48, height: 48, loading: "lazy", decoding: "async" });
    }
    lacking = true;
    return build("span", { class: "lacking", role: "img", "aria-label": alt, title: alt });
  }

  function row({ label, nearest }, full) {
    return build(
      "ol",
      { "aria-label": "The most similar others" },
      ...nearest.map((one) =>
        build(
          "li",
          { class: label && one.label === label ? "right" : null },
          picture(one, `similarity ${one.similarity.toFixed(2)}`),
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
        build("figure", {}, picture(sample), build("figcaption", {}, build("bdi", { text: sample.label }))),
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
  const note = "Some pictures are not here: a mirror has those that came with the coordinator's ledger.";
  return lacking ? [list, build("p", { class: "note", text: note })] : [list];
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
    if (sample && shown(sample) !== (found.length ? shown(found.at(-1).sample) : "")) found.push({ step, sample });
  }
  return found.toReversed();
}

const shown = (sample) => sample.nearest.map((one) => one.picture).join();
