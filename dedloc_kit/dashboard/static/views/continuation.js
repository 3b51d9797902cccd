// Beginnings of texts: how the model goes on now, how it went on before, and how the text does.

import { build } from "../dom.js";
import { count } from "../format.js";

/** Of `[{step, samples}]`, oldest first, the newest in full, each beginning with what was written before. */
export function continuation(moments) {
  const list = build("ul", { class: "continuation" });
  for (const { before, written, truth } of moments.at(-1).samples) {
    list.append(
      build(
        "li",
        {},
        build(
          "p",
          { class: "sentence", dir: "auto" },
          before,
          build("mark", { class: "written", text: written || " …" }),
        ),
        build(
          "details",
          {},
          build("summary", { text: "Before, and in the text" }),
          build(
            "dl",
            { class: "versions" },
            ...earlier(moments.slice(0, -1), before),
            build("dt", { text: "the text" }),
            build("dd", { dir: "auto", text: truth.trim() }),
          ),
        ),
      ),
    );
  }
  return list;
}

/** What it wrote on the way: every evaluation has the same beginnings. */
function earlier(moments, before) {
  return moments.flatMap(({ step, samples }) => {
    const same = samples.find((one) => one.before === before);
    if (!same) return [];
    return [
      build("dt", { text: step ? `step ${count(step)}` : "untrained" }),
      build("dd", { dir: "auto", text: same.written.trim() || "nothing" }),
    ];
  });
}
