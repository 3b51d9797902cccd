// The stages that the model is cut into: who holds each and how fast, which microbatches are there or on their way
// there, who moves, what limits the run, and who drives.

import { build, figure, keyed, section, setAttribute, setName, setText } from "../dom.js";
import { count, large, plural } from "../format.js";
import { hueOf, nameOf, pageOf, tally } from "../names.js";
import { keepAsking } from "../run.js";
import { tableBeside } from "../table.js";
import { viewHead } from "./head.js";

const BOXES = 12; // peers of a stage that have one of their own
const DOTS = 14; // microbatches at a stage that have one of their own, each way
const TALLEST = 14; // rem, of the boxes of the fastest stage together
const KEYS = {
  holding: "computes",
  moving: "moves, and computes until then",
  joining: "loads its stage, or leaves",
  gap: "nobody",
  forward: "a microbatch there, or on its way there",
  backward: "one that comes back",
};
const WAYS = ["forward", "backward"];
const STATES = { joining: "loads", online: "computes", moving: "moves", leaving: "leaves" };

const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const pace = (value) => (value < 100 ? short.format(value) : count(value));
const passes = ({ microbatches_per_second: speed }) => (speed ? `${pace(speed)}/s` : "not measured yet");
const holds = ({ state }) => state === "online" || state === "moving";

export function show(root, { signal }) {
  const head = viewHead("Pipeline", signal);
  const passed = figure("The run passes");
  const holders = figure("Hold a stage");
  const few = figure("Stages with too few");
  const driving = figure("Drivers");
  const under = figure("On their way");
  const stages = stagesPanel();
  const drivers = driversPanel();
  const numbers = build(
    "dl",
    { class: "figures plain-figures" },
    ...[passed, under, holders, few, driving].map((one) => one.element),
  );
  const empty = build("p", { class: "empty" });
  const page = build("div", { class: "page" }, empty, numbers, stages.element, drivers.element);
  root.append(head.element, page);

  keepAsking(
    () => "api/pipeline",
    ({ status, values }) => {
      if (status !== 200 && status !== 404) return;
      const known = status === 200 && values.stages.length > 0;
      for (const part of [numbers, stages.element, drivers.element]) part.hidden = !known;
      empty.hidden = known;
      setText(empty, status === 404 ? values.message : "Nothing is heard of the stages at the moment.");
      setText(head.lede, known ? sentence(values.bottleneck) : "A model in stages, each held by some volunteers.");
      if (known) update(values);
    },
    signal,
  );

  function update(pipeline) {
    const all = pipeline.stages.flatMap((stage) => stage.peers);
    const bare = pipeline.stages.filter((stage) => stage.holders === 0).length;
    const single = pipeline.stages.filter((stage) => stage.holders === 1).length;
    const loading = all.filter(({ state }) => state === "joining").length;
    setText(passed.value, pace(pipeline.throughput));
    setText(passed.aside, "microbatches/s, as its slowest stage");
    const [forward, backward] = WAYS.map((way) => pipeline.stages.reduce((sum, stage) => sum + stage[way], 0));
    setText(under.value, count(forward + backward));
    setText(under.aside, `microbatches: ${count(forward)} forward, ${count(backward)} back`);
    setText(holders.value, count(pipeline.stages.reduce((sum, stage) => sum + stage.holders, 0)));
    setText(holders.aside, loading ? `and ${plural(loading, "peer")} loading one` : "and nobody is loading one");
    setText(few.value, count(bare + single));
    const lacking = `${count(bare)} without a peer, ${count(single)} with one only`;
    setText(few.aside, bare + single ? lacking : "each has two peers or more");
    setText(driving.value, count(pipeline.drivers.length));
    setText(driving.aside, "send microbatches through all stages");
    const names = tally([...new Map([...all, ...pipeline.drivers].map((one) => [one.peer, one])).values()]);
    stages.update(pipeline, names);
    drivers.update(pipeline, names);
  }
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/** Stages as columns, their peers as boxes: the taller, the faster. */
function stagesPanel() {
  let known = [];
  let names = new Map();
  const list = build("ol", { class: "stages" });
  const keys = Object.entries(KEYS).map(([kind, text]) => build("span", { class: `stage-key ${kind}`, text }));
  const columns = ["Stage", "Peers", "Microbatches/s", "Forward", "Back", "Calls waiting", "Global step"];
  const table = tableBeside("The stages as a table", columns, () =>
    known.map((stage) => [
      count(stage.number),
      stage.holders ? count(stage.holders) : "nobody",
      pace(stage.throughput),
      ...WAYS.map((way) => count(stage[way])),
      count(stage.queue),
      count(stage.step),
    ]),
  );
  const everyone = tableBeside(
    "Their peers as a table",
    ["Peer", "Stage", "What it does", "Microbatches/s", "Calls waiting", "Samples through it", "Said to answer wrongly by"],
    () =>
      known.flatMap(({ number, peers }) =>
        peers.map((peer) => [
          nameOf(peer, names),
          count(number),
          doing(peer),
          passes(peer),
          count(peer.queue),
          large(peer.served),
          peer.accusers ? plural(peer.accusers, "driver") : "nobody",
        ]),
      ),
  );
  const part = section("Stages", list, table.element, everyone.element);
  part.head.append(build("p", { class: "note legend" }, ...keys));

  function update(pipeline, tallied) {
    known = pipeline.stages;
    names = tallied;
    const fastest = Math.max(...known.map((stage) => stage.throughput));
    keyed(
      list,
      known,
      (stage) => stage.number,
      (stage) =>
        build(
          "li",
          {},
          build(
            "h3",
            {},
            build("span", { text: `Stage ${count(stage.number)}` }),
            build("span", { class: "badge", text: "limits the run" }),
          ),
          build("p", { class: "note" }),
          build("div", { class: "ways" }, ...WAYS.map((way) => build("p", { class: way, role: "img" }))),
          build("ul", { class: "stage-peers", "aria-label": `Who holds stage ${count(stage.number)}` }),
        ),
      (column, stage) => {
        const [title, note, ways, boxes] = column.children;
        const limits = pipeline.limiting.includes(stage.number);
        column.classList.toggle("limits", limits);
        title.lastChild.hidden = !limits;
        setText(note, aboutStage(stage));
        showWay(ways.firstChild, stage.forward, "there, or on the way there");
        showWay(ways.lastChild, stage.backward, "there, or on the way there, coming back");
        showBoxes(boxes, stage, fastest);
      },
    );
    table.refresh();
    everyone.refresh();
  }

  function showBoxes(boxes, { number, holders, peers }, fastest) {
    const shown = peers.length > BOXES ? peers.slice(0, BOXES - 1) : peers;
    const more = peers.length - shown.length;
    const items = holders ? [...shown] : [{ kind: "gap" }, ...shown];
    if (more) items.push({ kind: "others", more });
    items.push(...comingTo(number));
    keyed(
      boxes,
      items,
      ({ kind, peer }) => (kind ? `-${kind}${peer ?? ""}` : peer),
      ({ kind, peer }) =>
        kind && !peer
          ? build("li", { class: kind }, build("span"))
          : build("li", {}, build("a", { class: "name", href: pageOf(peer) }), build("span")),
      (box, item) => {
        if (item.peer) {
          setName(box.firstChild, nameOf(item, names));
        }
        if (item.kind === "coming") {
          box.className = "coming";
          setText(box.lastChild, `comes from stage ${count(item.from)}`);
          return;
        }
        if (item.kind) {
          setText(box.firstChild, item.more ? `and ${plural(item.more, "more peer")}` : "nobody");
          return;
        }
        box.className = `${hueOf(item.peer, peers)} ${item.state}`;
        const part = holds(item) && fastest ? item.microbatches_per_second / fastest : 0;
        box.style.setProperty("min-height", `max(2.9rem, ${(part * TALLEST).toFixed(2)}rem)`);
        setText(box.lastChild, `${aboutPeer(item)}${accusation(item)}`);
        setAttribute(box, "title", `${plural(item.queue, "call")} waiting, ${large(item.served)} samples through it`);
      },
    );
  }

  /** Who is on the way from another stage to this one. */
  function comingTo(number) {
    const all = known.flatMap((from) =>
      from.peers
        .filter(({ state, moving_to: to }) => state === "moving" && to === number && to !== from.number)
        .map(({ peer, name }) => ({ kind: "coming", peer, name, from: from.number })),
    );
    return all.slice(0, BOXES);
  }

  return { element: part.section, update };
}

/** One dot for each microbatch. */
function showWay(line, all, where) {
  line.style.setProperty("--dots", Math.min(all, DOTS));
  setAttribute(line, "aria-label", `${plural(all, "microbatch", "microbatches")} ${where}`);
  setText(line, all > DOTS ? `and ${count(all - DOTS)} more` : "");
}

function aboutStage({ holders, throughput, step }) {
  if (!holders) return "no microbatch gets through";
  return `${plural(holders, "peer")}, ${pace(throughput)} microbatches/s, step ${count(step)}`;
}

function doing({ state, moving_to: to }) {
  return state === "moving" && to !== null ? `moves to stage ${count(to)}` : STATES[state];
}

function aboutPeer(peer) {
  if (peer.state !== "online") return peer.state === "moving" ? `${doing(peer)}, ${passes(peer)}` : doing(peer);
  const means = peer.moving_to === null ? "" : `, means to move to stage ${count(peer.moving_to)}`;
  return `${passes(peer)}${peer.queue ? `, ${count(peer.queue)} waiting` : ""}${means}`;
}

function accusation({ accusers }) {
  if (!accusers) return "";
  return `, ${plural(accusers, "driver")} ${accusers === 1 ? "says" : "say"} that it answers wrongly`;
}

/** Who sends microbatches through all stages. */
function driversPanel() {
  const body = build("tbody");
  const columns = [
    ["Driver", "who"],
    ["Samples", "number"],
    ["Begun", "number"],
  ];
  const titles = columns.map(([text, kind]) => build("th", { scope: "col", class: kind, text }));
  const scroll = build(
    "div",
    { class: "wide tall", tabindex: "0", role: "region", "aria-label": "The drivers in a table" },
    build("table", { class: "board" }, build("thead", {}, build("tr", {}, ...titles)), body),
  );
  const empty = build("p", { class: "empty", text: "Nobody drives." });
  const part = section("Drivers", scroll, empty);
  setText(part.note, "samples through all stages, and those begun for the next global step");

  function update({ drivers }, names) {
    scroll.hidden = !drivers.length;
    empty.hidden = drivers.length > 0;
    keyed(
      body,
      drivers,
      (driver) => driver.peer,
      (driver) =>
        build(
          "tr",
          {},
          build("th", { class: "who", scope: "row" }, build("a", { class: "name", href: pageOf(driver.peer) })),
          build("td", { class: "number" }),
          build("td", { class: "number" }),
        ),
      (row, driver) => {
        const [who, driven, begun] = row.children;
        setName(who.firstChild, nameOf(driver, names));
        setText(driven, large(driver.driven));
        setText(begun, count(driver.begun));
      },
    );
  }

  return { element: part.section, update };
}
