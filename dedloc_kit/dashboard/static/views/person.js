// One volunteer: what they gave, day by day and visit by visit, and the certificate for it.

import { STEPS, chart, token } from "../chart.js";
import { build, figure, keyed, section, setText } from "../dom.js";
import { ago, at, brief, bytes, count, day, duration, loss, percent, plural, visibleDevice, visibleName } from "../format.js";
import { me, rememberMe } from "../names.js";
import { retitle } from "../router.js";
import { keepAsking, run, subscribe } from "../run.js";
import { addressOf } from "../server.js";
import { tableBeside } from "../table.js";
import { viewHead } from "./head.js";

const DAYS = 60;
const VISITS = 8;

export function show(root, { parameter: peer, signal }) {
  if (location.hash === "#me") rememberMe(peer);
  const mine = me() === peer;
  const head = viewHead("A volunteer", signal);
  const you = build("span", { class: "badge you", text: "This is you", hidden: !mine });
  const active = build("span", { class: "badge now", text: "Training now", hidden: true });
  const away = build("span", { class: "badge away", text: "Sent away", hidden: true });
  head.title.parentElement.append(" ", you, active, away);
  const missing = build(
    "div",
    { class: "notice", hidden: true },
    build("h2", { text: "Nobody by this id has given anything yet" }),
    build("p", {
      text: mine
        ? "Your page begins with the first global step that has samples of yours in it."
        : "Perhaps the link is cut off, or their first global step is not done yet.",
    }),
  );

  const given = figure("Samples given");
  const rank = figure("Rank");
  const time = figure("Time given");
  const recent = figure("Samples a day lately");
  const answered = figure("Tokens answered");
  const carried = figure("Carried");
  const samples = [given, rank, recent];
  const numbers = build(
    "dl",
    { class: "figures plain-figures" },
    ...[given, rank, time, recent, answered, carried].map((one) => one.element),
  );
  const daily = days();
  const losses = lossChart(signal);
  const been = visits();
  const certificate = certificateLink(peer, mine);
  const content = build("div", { class: "person" }, numbers, certificate, daily.element, been.element, losses.element);
  content.hidden = true;
  root.append(head.element, build("div", { class: "page" }, missing, content));

  keepAsking(
    () => `api/people/${peer}`,
    ({ status, values }) => {
      if (status === 0) return;
      missing.hidden = status === 200;
      content.hidden = status !== 200;
      if (status !== 200) return;
      const { person } = values;
      const name = visibleName(person.name);
      setText(head.title, name);
      retitle(name);
      setText(active, person.samples ? "Training now" : "Here now");
      active.hidden = !person.active || person.sent_away;
      away.hidden = !person.sent_away;
      setText(
        head.lede,
        [
          person.team ? `Team ${person.team}` : "",
          `in this run since ${day(person.first_seen)}`,
          person.active ? "" : `last seen ${ago(person.last_seen)}`,
        ]
          .filter(Boolean)
          .join(", "),
      );
      setText(given.value, brief(person.samples));
      setText(given.aside, `${percent(person.share, 1)} of all, in ${plural(person.steps, "global step")}`);
      for (const one of samples) one.element.hidden = !person.samples;
      answered.element.hidden = !person.answered;
      setText(answered.value, brief(person.answered));
      setText(answered.aside, "by experts on their machine, as those who train confirm");
      carried.element.hidden = !person.carried;
      setText(carried.value, bytes(person.carried));
      setText(carried.aside, "over their line, for those who train");
      setText(rank.value, person.rank ? count(person.rank) : "–");
      setText(rank.aside, `of ${plural(run.state?.contributor_count ?? person.rank, "person", "people")}`);
      setText(time.value, duration(person.seconds));
      time.element.hidden = !person.seconds;
      setText(time.aside, person.samples ? `in ${plural(person.sessions, "session")}` : "their line was lent");
      setText(recent.value, brief(Math.round(person.recent)));
      setText(recent.aside, "half as much for each week past");
      daily.update(values.days);
      been.update(values.visits);
      losses.update(values.losses);
    },
    signal,
  );
}

function certificateLink(peer, mine) {
  const link = build("a", { class: "button", href: addressOf(`people/${peer}/certificate.svg`), text: "Certificate" });
  const text = mine
    ? "Your certificate says what you gave to this model."
    : "The certificate says what this volunteer gave to the model.";
  return build(
    "div",
    { class: "certificate" },
    build("p", { text: `${text} To print it or to keep it as a PDF, open it and let your browser print, in landscape.` }),
    link,
  );
}

/** Samples by day as bars, up to today. */
function days() {
  let known = [];
  const bars = build("div", { class: "days", role: "img" });
  const first = build("span");
  const axis = build("p", { class: "axis note", "aria-hidden": "true" }, first, build("span", { text: "today" }));
  const beside = tableBeside("The days as a table", ["Day", "Samples"], () =>
    known.toReversed().map((one) => [day(one.day), count(one.samples)]),
  );
  const part = section("Day by day", bars, axis, beside.element);

  function update(list) {
    known = list;
    part.section.hidden = !list.length;
    const samples = new Map(list.map((one) => [one.day, one.samples]));
    const shown = Array.from({ length: DAYS }, (_, index) =>
      new Date(Date.now() - 86_400_000 * (DAYS - 1 - index)).toISOString().slice(0, 10),
    );
    const begin = Math.max(
      0,
      Math.min(
        DAYS - 14,
        shown.findIndex((one) => samples.has(one)),
      ),
    );
    const visible = shown.slice(begin);
    const most = Math.max(1, ...visible.map((one) => samples.get(one) ?? 0));
    keyed(
      bars,
      visible,
      (one) => one,
      () => build("i"),
      (bar, one) => {
        const number = samples.get(one) ?? 0;
        bar.style.setProperty("height", `${(100 * number) / most}%`);
        bar.title = `${day(one)}: ${count(number)} samples`;
      },
    );
    setText(first, day(visible[0]));
    const busiest = visible.find((one) => (samples.get(one) ?? 0) === most);
    bars.setAttribute(
      "aria-label",
      busiest ? `Samples by day; most on ${day(busiest)}: ${count(most)}` : "No samples in the last days",
    );
    setText(part.note, `${plural(list.length, "day")} in all`);
    beside.refresh();
  }

  return { element: part.section, update };
}

/** The latest visits, and the others in a table. */
function visits() {
  let known = [];
  const list = build("ul", { class: "visits" });
  const beside = tableBeside("All visits as a table", ["Came", "For", "Device", "Samples"], () =>
    known.map((visit) => [
      at(visit.since),
      duration(lengthOf(visit)),
      visibleDevice(visit.device),
      count(visit.samples),
    ]),
  );
  const part = section("Visits", list, beside.element);

  function update(all) {
    known = all;
    part.section.hidden = !all.length;
    showVisits(list, all.slice(0, VISITS));
    beside.refresh();
  }

  return { element: part.section, update };
}

const lengthOf = (visit) => Math.max(1, (visit.until ?? Date.now() / 1000) - visit.since);

function showVisits(list, visits) {
  keyed(
    list,
    visits,
    (visit) => visit.since,
    () =>
      build(
        "li",
        {},
        build("span", { class: "when" }),
        build("bdi", { class: "what" }),
        build("span", { class: "amount" }),
      ),
    (item, visit) => {
      const [when, what, amount] = item.children;
      setText(when, at(visit.since));
      const here = visit.until === null ? "here now, for" : "for";
      setText(what, `${here} ${duration(lengthOf(visit))} on ${visibleDevice(visit.device)}`);
      setText(amount, plural(visit.samples, "sample"));
      item.classList.toggle("now", visit.until === null);
    },
  );
}

/** This volunteer's own loss beside everyone's. */
function lossChart(signal) {
  let known = [];
  const { element: picture, draw } = chart(make, signal);
  const beside = tableBeside("The losses as a table", ["Global step", "Loss"], () =>
    known
      .slice(-50)
      .reverse()
      .map(([step, value]) => [count(step), loss(value)]),
  );
  const legend = build(
    "p",
    { class: "note legend" },
    build("span", { class: "key evaluation", text: "this volunteer's samples" }),
    build("span", { class: "key quiet", text: "everyone's" }),
  );
  const part = section("Loss on their samples", picture, beside.element);
  part.head.append(legend);

  function make() {
    const all = run.history.steps.filter((step) => step.loss !== null);
    return {
      traces: [
        {
          name: "everyone",
          x: all.map((step) => step.step),
          y: all.map((step) => step.loss),
          mode: "lines",
          line: { color: token("--quiet"), width: 1 },
          hovertemplate: "%{y:.3f}",
        },
        {
          name: "this volunteer",
          x: known.map(([step]) => step),
          y: known.map(([, value]) => value),
          mode: known.length > 60 ? "lines" : "lines+markers",
          line: { color: token("--evaluation"), width: 2 },
          marker: { size: 5 },
          hovertemplate: "%{y:.3f}",
        },
      ],
      layout: { xaxis: STEPS },
      label: known.length
        ? `The loss on this volunteer's samples, from ${loss(known[0][1])} to ${loss(known.at(-1)[1])}.`
        : "No losses yet.",
    };
  }

  function update(losses) {
    known = losses;
    part.section.hidden = !losses.length;
    if (losses.length) draw();
    beside.refresh();
  }

  subscribe((what) => what === "history" && known.length && draw(), signal);
  return { element: part.section, update };
}
