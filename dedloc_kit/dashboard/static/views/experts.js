// The experts that volunteers host: each layer as a grid of cells, with who has them and how many tokens go to each.

import { build, figure, keyed, section, setAttribute, setName, setText } from "../dom.js";
import { brief, count, plural } from "../format.js";
import { hueOf, nameOf, pageOf, tally } from "../names.js";
import { keepAsking } from "../run.js";
import { tableBeside } from "../table.js";
import { viewHead } from "./head.js";

const BUSIEST = 2.5; // times the mean, of a cell that is drawn full
const KEYS = {
  two: "on two machines",
  one: "on one alone",
  none: "nobody keeps it",
  busy: "the fuller, the more tokens go to it",
};
const KINDS = ["none", "one", "two"];

const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });

export function show(root, { signal }) {
  const head = viewHead("Experts", signal);
  const all = figure("Experts");
  const twice = figure("On two machines");
  const helpers = figure("Hosts");
  const busiest = figure("Most used");
  const numbers = build(
    "dl",
    { class: "figures plain-figures" },
    ...[all, twice, helpers, busiest].map((one) => one.element),
  );
  const layers = layersPanel();
  const hosts = hostsPanel();
  const empty = build("p", { class: "empty" });
  root.append(head.element, build("div", { class: "page" }, empty, numbers, layers.element, hosts.element));

  keepAsking(
    () => "api/experts",
    ({ status, values }) => {
      if (status !== 200 && status !== 404) return;
      const known = status === 200 && values.layers.length > 0;
      for (const part of [numbers, layers.element, hosts.element]) part.hidden = !known;
      const told = values.held ? sentence(values.held) : "Nothing is heard of the experts at the moment.";
      empty.hidden = known;
      setText(empty, status === 404 ? values.message : told);
      setText(head.lede, known ? told : "A model larger than any volunteer: its experts are on many machines.");
      if (known) update(values);
    },
    signal,
  );

  function update(experts) {
    const machines = experts.layers.flatMap((layer) => layer.machines);
    const single = machines.filter((number) => number === 1).length;
    const bare = machines.filter((number) => number === 0).length;
    const volunteers = experts.hosts.filter((host) => !host.organizer);
    const most = Math.max(...experts.layers.map((layer) => layer.most_over_mean));
    setText(all.value, count(experts.count));
    const grid = `${count(experts.rows)} × ${count(experts.columns)}`;
    setText(all.aside, `${grid} in ${plural(experts.layers.length, "layer")}`);
    setText(twice.value, count(machines.length - single - bare));
    setText(twice.aside, `${count(single)} on one alone, ${count(bare)} nowhere`);
    setText(helpers.value, count(volunteers.length));
    setText(helpers.aside, "besides the organizer’s machine");
    setText(busiest.value, most ? `${short.format(most)} ×` : "–");
    setText(busiest.aside, "what a cell of its layer gets in the mean");
    const names = tally(experts.hosts);
    layers.update(experts, names);
    hosts.update(experts, names);
  }
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
const whoseName = (host, names) => (host.organizer ? "the organizer" : nameOf(host, names));
const cellName = (layer, cell, columns) => `${layer.layer}.${Math.floor(cell / columns)}.${cell % columns}`;

/** Each layer as a grid: a cell has the colour of who keeps it. */
function layersPanel() {
  let known = null;
  let names = new Map();
  const list = build("ol", { class: "expert-layers" });
  const keys = Object.entries(KEYS).map(([kind, text]) => build("span", { class: `cell-key ${kind}`, text }));
  const table = tableBeside(
    "The experts as a table",
    ["Expert", "Kept by", "Copy with", "Tokens in the last step, about"],
    () =>
      known.layers.flatMap((layer) =>
        layer.keepers.map((keeper, cell) => [
          cellName(layer, cell, known.columns),
          who(keeper),
          who(layer.stand_ins[cell]),
          count(layer.tokens[cell]),
        ]),
      ),
  );
  const part = section("Layers", list, table.element);
  part.head.append(build("p", { class: "note legend" }, ...keys));

  const who = (place) => (place === null ? "nobody" : whoseName(known.hosts[place], names));

  function update(experts, tallied) {
    known = experts;
    names = tallied;
    keyed(
      list,
      experts.layers,
      (layer) => layer.layer,
      (layer) =>
        build(
          "li",
          {},
          build("h3", { text: `Layer ${count(layer.layer)}` }),
          build("p", { class: "note" }),
          build("div", { class: "cells", role: "img" }),
        ),
      (item, layer) => {
        const [, note, cells] = item.children;
        const total = layer.tokens.reduce((sum, tokens) => sum + tokens, 0);
        const most = `${short.format(layer.most_over_mean)} × the mean in the most used`;
        setText(note, total ? `about ${brief(total)} tokens in the last step, ${most}` : "no tokens yet");
        cells.style.setProperty("--columns", experts.columns);
        setAttribute(cells, "aria-label", aboutLayer(layer));
        keyed(
          cells,
          layer.keepers.map((keeper, cell) => ({ keeper, cell })),
          ({ cell }) => cell,
          () => build("i"),
          (element, { keeper, cell }) => {
            const mean = total / layer.keepers.length;
            const part = mean ? Math.min(1, layer.tokens[cell] / mean / BUSIEST) : 0;
            const hue = keeper === null ? "" : hueOf(experts.hosts[keeper].peer, experts.hosts);
            element.className = `${KINDS[keeper === null ? 0 : layer.machines[cell]]} ${hue}`.trim();
            element.style.setProperty("--load", `${Math.round(100 * part)}%`);
            const has = `kept by ${who(keeper)}, copy with ${who(layer.stand_ins[cell])}`;
            const gets = `about ${plural(layer.tokens[cell], "token")}`;
            setAttribute(element, "title", `${cellName(layer, cell, experts.columns)}: ${has}, ${gets}`);
          },
        );
      },
    );
    table.refresh();
  }

  function aboutLayer({ layer, machines }) {
    const [none, one, two] = [0, 1, 2].map((wanted) => machines.filter((number) => number === wanted).length);
    return `Layer ${count(layer)}: ${count(two)} experts on two machines, ${count(one)} on one, ${count(none)} nowhere`;
  }

  return { element: part.section, update };
}

/** Who has them, with the colour of each. */
function hostsPanel() {
  const body = build("tbody");
  const columns = [
    ["Host", "who"],
    ["Keeps", "number"],
    ["Stands in for", "number"],
    ["Tokens in the last step, about", "number"],
  ];
  const titles = columns.map(([text, kind]) => build("th", { scope: "col", class: kind, text }));
  const scroll = build(
    "div",
    { class: "wide tall", tabindex: "0", role: "region", "aria-label": "The hosts in a table" },
    build("table", { class: "board" }, build("thead", {}, build("tr", {}, ...titles)), body),
  );
  const part = section("Who has them", scroll);
  setText(part.note, "what nobody else has the organizer’s machine does");

  function update({ hosts, layers }, names) {
    const tokens = hosts.map(() => 0);
    for (const layer of layers)
      layer.keepers.forEach((keeper, cell) => keeper !== null && (tokens[keeper] += layer.tokens[cell]));
    keyed(
      body,
      hosts.map((host, place) => ({ ...host, tokens: tokens[place] })),
      (host) => host.peer,
      (host) =>
        build(
          "tr",
          {},
          build(
            "th",
            { class: "who", scope: "row" },
            build("span", { class: `swatch ${hueOf(host.peer, hosts)}` }),
            host.organizer ? build("bdi", { class: "name" }) : build("a", { class: "name", href: pageOf(host.peer) }),
          ),
          ...columns.slice(1).map(([, kind]) => build("td", { class: kind })),
        ),
      (row, host) => {
        const [named, kept, copies, answered] = row.children;
        setName(named.lastChild, whoseName(host, names));
        setText(kept, plural(host.kept, "expert"));
        setText(copies, count(host.copies));
        setText(answered, brief(host.tokens));
      },
    );
  }

  return { element: part.section, update };
}
