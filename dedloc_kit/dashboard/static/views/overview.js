// The run at a glance: what it is, how far it is, the batch that fills, what the model has learned and what it says.

import { build, figure, section, setText } from "../dom.js";
import { ago, brieflyFor, count, large, loss, plural, rate } from "../format.js";
import { counter } from "../numbers.js";
import { known, run, subscribe } from "../run.js";
import { load } from "../server.js";
import { explanation } from "../status.js";
import { batchPanel } from "./batch.js";
import { curve } from "./curve.js";
import { joinPanel } from "./join.js";
import { saidPanel } from "./said.js";
import { suitesPanel } from "./suites.js";

const TASKS = {
  albert: "ALBERT",
  causal: "language",
  encoder: "masked language",
  swav: "SwAV",
  "text-to-image": "drawing",
};

export async function show(root, { signal }) {
  const [configuration] = await Promise.all([load("api/run"), known]);
  if (signal.aborted) return;
  const name = build("h1", {}, build("bdi", { id: "name", text: "A community run" }));
  const about = build("p", {
    class: "lede",
    dir: "auto",
    text: "A model that volunteers train together over the Internet.",
  });
  const how = build("p", { class: "how", text: configuration ? howItWorks(configuration.run) : "" });
  const checks = build("p", { class: "how checks", hidden: true });
  const join = joinPanel();
  const numbers = figures();
  const compared = build("p", { class: "how compared", hidden: true });
  const planned = build("p", { class: "how planned", hidden: true });
  const batch = batchPanel();
  const banner = announcement();
  const notice = noticePanel();
  const learned = curve(signal);
  const said = saidPanel(signal);
  const suites = suitesPanel();
  const news = section("From the coordinator", build("ul", { class: "news" }));

  root.append(
    build(
      "div",
      { class: "band" },
      build("div", { class: "masthead" }, build("div", { class: "introduction" }, name, about, how, checks), join.element),
      notice.element,
      numbers.element,
      compared,
      planned,
      batch.element,
    ),
    build("div", { class: "page" }, banner.element, learned.element, said.element, suites.element, news.section),
  );

  function update() {
    const { state } = run;
    if (!state) return;
    setText(name.firstChild, state.name);
    if (state.about) setText(about, state.about);
    setText(checks, state.checks ? `${state.checks}.` : "");
    checks.hidden = !state.checks;
    numbers.update(state);
    setText(compared, comparison(state));
    compared.hidden = !compared.textContent;
    setText(planned, state.plan && state.status === "training" ? `${state.plan.text}.` : "");
    planned.hidden = !planned.textContent;
    batch.update(state, run.connected);
    banner.update(state.announcement);
    join.update(state);
    said.update(state);
    suites.update(state);
    notice.update(state);
    showNews(news, state.notices);
  }

  subscribe((what) => (what === "history" ? numbers.update(run.state) : update()), signal);
  update();
  const clock = setInterval(() => run.state && batch.tick(run.state, run.connected), 1_000);
  signal.addEventListener("abort", () => clearInterval(clock));
}

/** The sentence about how this run works, from its configuration. */
function howItWorks(configuration) {
  const task = TASKS[configuration.task.name] ?? configuration.task.name;
  const data = new Intl.ListFormat("en").format([...new Set(configuration.data.train.map(sourceName))].slice(0, 3));
  return (
    `Volunteers train one ${task} model together over the Internet, on ${data}. ` +
    `Every ${count(configuration.global_batch)} samples, from whoever is here, it takes one step.`
  );
}

function sourceName({ dataset, subset }) {
  const local = /^[./~]|^[A-Za-z]:/.test(dataset);
  const parts = dataset.split(/[\\/]/).filter(Boolean);
  // Of a local file, the folder says more than `train-00000-of-00004.parquet`.
  const name = local && /\.\w+$/.test(parts.at(-1)) ? parts.at(-2) : parts.at(-1);
  return subset ? `${name} (${subset})` : name;
}

/** The numbers that move. */
function figures() {
  const step = figure("Global step");
  const meter = build("div", { class: "meter", "aria-hidden": "true" }, build("i"));
  step.element.className = "leading";
  step.element.append(meter);
  const samples = figure("Samples seen");
  const training = figure("Training loss");
  const volunteers = figure("Training now");
  const time = figure("Time given");
  const end = figure("Time to go");
  const all = [step, samples, training, volunteers, time, end];
  const element = build(
    "dl",
    { class: "figures", "aria-label": "The run in numbers" },
    ...all.map((one) => one.element),
  );
  const shownStep = counter(step.value, (value) => count(Math.round(value)));
  const shownSamples = counter(samples.value, (value) => large(Math.round(value)));
  const shownLoss = counter(training.value, loss);
  const shownVolunteers = counter(volunteers.value, (value) => count(Math.round(value)));
  step.value.id = "step";

  function update(state) {
    if (!state) return;
    shownStep(state.step);
    const { decay } = state;
    setText(
      step.aside,
      decay ? `cooldown: step ${count(decay.step)} of ${count(decay.steps)}` : `of ${count(state.total_steps)}`,
    );
    const done = decay ? decay.step / decay.steps : state.step / state.total_steps;
    meter.firstChild.style.setProperty("width", `${(100 * Math.min(1, done)).toFixed(2)}%`);
    shownSamples(state.samples_total);
    setText(
      samples.aside,
      state.seconds_per_step
        ? `a step every ${brieflyFor(state.seconds_per_step)}`
        : `${count(state.global_batch)} to a step`,
    );
    shownLoss(state.loss);
    const first = run.history.steps.find((one) => one.loss !== null);
    setText(training.aside, first ? `from ${loss(first.loss)} at first` : "begins with the first step");
    const blind = state.status === "coordinator lost"; // then nobody tells us who is there
    shownVolunteers(blind ? null : state.volunteers);
    const together = state.volunteers && !blind ? `${rate(state.samples_per_second)} samples/s in all` : "";
    setText(volunteers.aside, together || `${plural(state.contributor_count, "person", "people")} so far`);
    setText(time.value, state.device_seconds ? brieflyFor(state.device_seconds) : "–");
    setText(
      time.aside,
      state.device_seconds ? `by ${plural(state.contributor_count, "person", "people")}` : "by everyone",
    );
    showEnd(state);
  }

  function showEnd(state) {
    const eta = state.status === "training" ? state.run_eta_seconds : null;
    if (state.status === "finished") {
      setText(end.value, "Done");
      setText(end.aside, state.last_step_time ? ago(state.last_step_time) : "");
    } else {
      setText(end.value, eta ? brieflyFor(eta) : "–");
      setText(end.aside, eta ? "at this pace" : "told while it trains");
    }
  }

  return { element, update };
}

/** Whether the run beats the model that it goes on from; nothing if it does not, or neither was measured yet. */
function comparison({ start, evaluation }) {
  if (!start || !evaluation) return "";
  const since = start.better_since;
  const better = since === null ? "Not yet better" : "Better";
  return (
    `${better} than the model it began from, ${start.model}${since === null ? "" : `, since step ${count(since)}`}: ` +
    `held-out loss ${loss(evaluation.last.loss)}, that of the model ${loss(start.loss)}.`
  );
}

/** What a reader should know before the numbers, while the run does not simply train. */
function noticePanel() {
  const title = build("h2");
  const text = build("p");
  const model = build("a", { class: "button", text: "The model on the Hub" });
  const element = build("div", { class: "notice", role: "status", hidden: true }, title, text, model);
  return {
    element,
    update(state) {
      const told = explanation(state);
      element.hidden = !told;
      element.dataset.status = state.status;
      setText(title, told?.title ?? "");
      setText(text, told?.text ?? "");
      const url = state.checkpoint?.url ?? "";
      model.hidden = state.status !== "finished" || !url.startsWith("https://");
      if (!model.hidden) model.href = url;
    },
  };
}

function announcement() {
  const text = build("p", { class: "announcement-text", dir: "auto" });
  const when = build("p", { class: "note" });
  const element = build(
    "aside",
    { class: "announcement", "aria-label": "From the organizer", hidden: true },
    text,
    when,
  );
  return {
    element,
    update(told) {
      element.hidden = !told;
      setText(text, told?.text ?? "");
      setText(when, told ? `From the organizer, ${ago(told.time)}` : "");
    },
  };
}

function showNews({ section: element }, notices) {
  element.hidden = !notices.length;
  element
    .querySelector("ul")
    .replaceChildren(
      ...notices
        .toReversed()
        .map(({ text, time }) =>
          build("li", {}, build("bdi", { text }), build("span", { class: "note", text: ago(time) })),
        ),
    );
}
