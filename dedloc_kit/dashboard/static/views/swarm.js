// The swarm at work: who is there, where each global step's time goes, what went wrong, who came and left.

import { STEPS, chart, token } from "../chart.js";
import { build, figure, section, setText } from "../dom.js";
import { ago, count, plural, rate } from "../format.js";
import { keepAsking, run, subscribe } from "../run.js";
import { tableBeside } from "../table.js";
import { viewHead } from "./head.js";
import { leftOut } from "./left_out.js";
import { peerTable } from "./peers.js";
import { regions } from "./regions.js";
import { sentAway } from "./sent_away.js";
import { timeline } from "./timeline.js";

const PARTS = [
  ["compute", "computing", "--compute"],
  ["gather", "gathering", "--gather"],
  ["average", "averaging", "--average"],
  ["apply", "applying", "--apply"],
];
const BARS = 75;

export function show(root, { signal }) {
  const head = viewHead("Swarm", signal);
  setText(head.lede, "Who is connected now, and how well they work together.");
  const volunteers = figure("Volunteers now");
  const speed = figure("Together");
  const failed = figure("Failed rounds");
  const rejected = figure("Rejected records");
  const numbers = build(
    "dl",
    { class: "figures plain-figures" },
    ...[volunteers, speed, failed, rejected].map((one) => one.element),
  );
  const peers = peerTable(signal);
  const breakdown = breakdownChart(signal);
  const groups = groupChart(signal);
  const absent = leftOut();
  const away = sentAway();
  const troubles = troubleList();
  root.append(
    head.element,
    build(
      "div",
      { class: "page" },
      numbers,
      regions(signal),
      peers,
      breakdown.element,
      groups.element,
      absent.element,
      away.element,
      timeline(signal),
      troubles.element,
    ),
  );

  function update(what) {
    const { state } = run;
    if (!state || what === "history") return;
    setText(volunteers.value, count(state.volunteers));
    setText(
      volunteers.aside,
      state.peer_count > state.volunteers
        ? `and ${plural(state.peer_count - state.volunteers, "peer")} beside them`
        : "and nobody else",
    );
    setText(speed.value, rate(state.samples_per_second));
    setText(speed.aside, "samples a second");
  }
  subscribe(update, signal);
  update("state");
  keepAsking(
    () => "api/rounds?after=0",
    ({ status, values }) => {
      if (status !== 200) return;
      setText(failed.value, count(values.failed_count));
      setText(failed.aside, "held again or given up");
      setText(rejected.value, count(values.rejected_count));
      setText(rejected.aside, "that no honest peer would send");
      breakdown.update(values.rounds);
      groups.update(values.rounds);
      absent.update(values);
      away.update(values);
      troubles.update(values);
    },
    signal,
  );
}

/** Where the time of each global step goes. */
function breakdownChart(signal) {
  let known = [];
  const { element: picture, draw } = chart(make, signal);
  const beside = tableBeside("The times as a table", ["Global step", ...PARTS.map(([, text]) => `${text}, s`)], () =>
    known
      .slice(-50)
      .reverse()
      .map((round) => [count(round.step), ...PARTS.map(([key]) => seconds(round[key]))]),
  );
  const legend = build(
    "p",
    { class: "note legend" },
    ...PARTS.map(([key, text]) => build("span", { class: `key ${key}`, text })),
  );
  const empty = build("p", { class: "empty", text: "The first global step will say where its time went." });
  const part = section("Where a step's time goes", picture, empty, beside.element);
  part.head.append(legend);

  function make() {
    const last = known.at(-1);
    const parts = PARTS.map(([key, text]) => `${text} ${seconds(last[key])}`);
    return {
      traces: PARTS.map(([key, name, colour]) => ({
        name,
        x: known.map((round) => round.step),
        y: known.map((round) => round[key]),
        type: "bar",
        marker: { color: token(colour), line: { width: 0 } },
        hovertemplate: "%{y:.2f} s",
      })),
      layout: {
        barmode: "stack",
        bargap: 0.2,
        xaxis: STEPS,
        yaxis: { title: { text: "seconds", font: { size: 12 } }, rangemode: "tozero" },
      },
      label: `Seconds of each global step by part. Last, at ${count(last.step)}: ${parts.join(", ")}.`,
    };
  }

  function update(rounds) {
    known = means(rounds.filter((round) => PARTS.some(([key]) => round[key] !== null)));
    empty.hidden = known.length > 0;
    picture.hidden = beside.element.hidden = legend.hidden = !known.length;
    if (known.length) draw();
    beside.refresh();
  }

  return { element: part.section, update };
}

/** At most so many bars as the eye can tell apart, each the mean over some steps. */
function means(rounds) {
  const size = Math.ceil(rounds.length / BARS);
  return Array.from({ length: Math.ceil(rounds.length / (size || 1)) }, (_, index) => {
    const some = rounds.slice(index * size, (index + 1) * size);
    const mean = (key) => some.reduce((sum, round) => sum + (round[key] ?? 0), 0) / some.length;
    return { step: some.at(-1).step, ...Object.fromEntries(PARTS.map(([key]) => [key, mean(key)])) };
  });
}

const seconds = (value) => value.toFixed(2);
const batches = (samples) => (samples / run.state.global_batch).toFixed(2);

/** How many peers each global step was made of. */
function groupChart(signal) {
  let known = [];
  const { element: picture, draw } = chart(make, signal);
  picture.classList.add("low");
  const columns = ["Global step", "Peers", "Left out", "Samples", "Over the global batch"];
  const beside = tableBeside("The sizes as a table", columns, () =>
    known
      .slice(-50)
      .reverse()
      .map((round) => [
        count(round.step),
        count(round.peers),
        round.left_out === null ? "–" : count(round.left_out),
        count(round.samples),
        batches(round.samples),
      ]),
  );
  const part = section("How many made each step", picture, beside.element);

  function make() {
    return {
      traces: [
        {
          name: "peers",
          x: known.map((round) => round.step),
          y: known.map((round) => round.peers),
          mode: "lines",
          line: { color: token("--accent"), width: 1.75, shape: "hv" },
          fill: "tozeroy",
          fillcolor: token("--training-faint"),
          hovertemplate: "%{y} peers",
        },
      ],
      layout: { xaxis: STEPS, yaxis: { rangemode: "tozero", tickformat: ",d", nticks: 4 } },
      label: `Peers in each global step; ${plural(known.at(-1).peers, "peer")} in the last.`,
    };
  }

  function update(rounds) {
    known = rounds;
    part.section.hidden = !known.length;
    if (known.length) draw();
    beside.refresh();
  }

  return { element: part.section, update };
}

/** Rounds that failed and records that were refused, newest first. */
function troubleList() {
  const list = build("ul", { class: "news" });
  const empty = build("p", { class: "empty", text: "Nothing has gone wrong lately." });
  const part = section("What went wrong", list, empty);

  function update({ failed, rejected }) {
    const all = [
      ...failed.map(({ time, step, text }) => ({ time, text: `Round for global step ${count(step)}: ${text}` })),
      ...rejected.map(({ time, text }) => ({ time, text: `Rejected: ${text}` })),
    ].sort((one, other) => other.time - one.time);
    empty.hidden = all.length > 0;
    list.replaceChildren(
      ...all.map(({ time, text }) =>
        build("li", {}, build("bdi", { text }), build("span", { class: "note", text: ago(time) })),
      ),
    );
  }

  return { element: part.section, update };
}
