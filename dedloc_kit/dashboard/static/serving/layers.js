// Which layers are served how well, as a strip, and the same as a table.

import { build, keyed, section, setAttribute, setText } from "../dom.js";
import { count, plural, rate } from "../format.js";
import { tableBeside } from "../table.js";

/** As people read it: the last layer included. */
export const range = ({ begin, end }) => (end - begin === 1 ? count(begin) : `${count(begin)} to ${count(end - 1)}`);

const KINDS = { bare: "nobody", single: "one server only", well: "two servers or more" };

const kindOf = ({ servers }) => (servers === 0 ? "bare" : servers === 1 ? "single" : "well");

export function layersPanel() {
  let stretches = [];
  const strip = build("div", { class: "strip", role: "img", "aria-label": "Layers and how many serve them" });
  const last = build("span");
  const axis = build("p", { class: "axis note", "aria-hidden": "true" }, build("span", { text: "layer 0" }), last);
  const keys = Object.entries(KINDS).map(([kind, text]) => build("span", { class: `layer-key ${kind}`, text }));
  const table = tableBeside("The layers in a table", ["Layers", "Served by", "Tokens/s"], () =>
    stretches.map((one) => [range(one), servedBy(one), rate(one.speed)]),
  );
  const part = section("Layers", strip, axis, build("p", { class: "legend note" }, ...keys), table.element);
  part.section.classList.add("layers");

  function update(state) {
    stretches = state.stretches;
    const fastest = Math.max(...stretches.map((one) => one.speed), 1e-9);
    keyed(
      strip,
      stretches,
      (one) => `${one.begin}-${one.end}`,
      () => build("div", { class: "stretch" }, build("i"), build("span")),
      (element, one) => {
        element.className = `stretch ${kindOf(one)}`;
        element.style.setProperty("flex-grow", one.end - one.begin);
        element.title = `Layers ${range(one)}: ${servedBy(one)}, ${rate(one.speed)} tokens/s`;
        const height = one.servers ? Math.max(0.12, one.speed / fastest) : 1;
        element.firstChild.style.setProperty("height", `${(100 * height).toFixed(1)}%`);
        setText(element.lastChild, one.servers ? count(one.servers) : "none");
      },
    );
    setAttribute(strip, "aria-label", inWords(state));
    setText(last, state.layers ? `layer ${count(state.layers - 1)}` : "");
    setText(part.note, "how many serve each; the higher, the faster");
    table.refresh();
  }

  return { element: part.section, update };
}

const servedBy = ({ servers }) => (servers ? plural(servers, "server") : "nobody");

function inWords({ layers, bare_layers: bare, single_layers: single, speed }) {
  const lacking = bare ? `${plural(bare, "layer")} of ${count(layers)} served by nobody` : `All ${count(layers)} layers served`;
  return `${lacking}, ${count(single)} by one server only. The worst-served passes ${rate(speed)} tokens a second.`;
}
