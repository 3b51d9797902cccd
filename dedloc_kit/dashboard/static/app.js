// The page: keeps the latest state and the curves, and shows them. Whatever comes from peers is set as text only.

import { drawChart, fillTable } from "./chart.js";
import { ago, brief, count, duration, large, loss, percent, plural, rate, visibleName } from "./format.js";
import { listen } from "./live.js";

const byId = (id) => document.getElementById(id);
const TASKS = { albert: "ALBERT", swav: "SwAV" };
const STATUS = {
  starting: "Starting",
  "waiting for volunteers": "Waiting for volunteers",
  training: "Training",
  paused: "Paused",
  finished: "Finished",
  "coordinator lost": "Coordinator lost",
};
// What shares of the held-out samples mean in words: now, and at the run's first evaluation.
const SKILLS = {
  "masked accuracy": (now, first) => `Of 100 hidden words it guesses ${now}${first === undefined ? "" : `, at first ${first}`}.`,
  "sentence order accuracy": (now) => `Of 100 pairs of passages it tells for ${now} which came first; chance alone would give 50.`,
};
const HUES = 14;
const PEERS_SHOWN = 48;
const CONTRIBUTORS_SHOWN = 8;
const MOST_POINTS = 4_000; // beyond this the server's thinned curves are fetched again
const SUMMARY_PAUSE = 30_000; // a screen reader should not be talked over

let state = null;
let connected = false;
let history = { steps: [], evaluations: [] };
let evaluated = true; // whether this run measures an evaluation loss at all
let everyContributor = false;
let readyAt = null; // when the batch should be full, by this browser's clock

// ---- what arrives -------------------------------------------------------------------------------------------

function onEvent(name, values) {
  if (name === "history") {
    addHistory(values);
    return;
  }
  state = { ...state, ...values };
  if (name === "state") {
    // A new connection; the server may be a new one too.
    loadHistory();
    showRun();
  }
  if ("eta_seconds" in values || "batch" in values) {
    readyAt = state.eta_seconds === null ? null : Date.now() + 1000 * state.eta_seconds;
  }
  showState();
}

function onConnection(now) {
  connected = now;
  showAlert();
  showStatus();
}

async function loadHistory() {
  const values = await load("api/history");
  if (!values) return;
  history = values;
  showHistory();
}

/** The values at a path; nothing if the server is away, which the event stream notices and puts right. */
async function load(path) {
  try {
    const answer = await fetch(path);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

function addHistory({ after, last_step: lastStep, steps, evaluations }) {
  const known = history.steps.at(-1)?.step ?? 0;
  if (after > known || lastStep < known || history.steps.length > MOST_POINTS) {
    loadHistory(); // a gap, or the run was taken back to an earlier checkpoint
    return;
  }
  const measured = history.evaluations.at(-1)?.step ?? -1; // there is one of step 0
  history.steps.push(...steps.filter((step) => step.step > known));
  history.evaluations.push(...evaluations.filter((evaluation) => evaluation.step > measured));
  showHistory();
}

// ---- what is shown ------------------------------------------------------------------------------------------

function showState() {
  showAlert();
  showStatus();
  showFigures();
  showBatch();
  showPeers();
  showContributors();
  showSkills();
  showNotices();
  showJoin();
  announce();
}

async function showRun() {
  const values = await load("api/run");
  if (!values) return;
  const { run_id: runId, run } = values;
  byId("name").textContent = run.name;
  byId("run-id").textContent = runId;
  const task = TASKS[run.task.name] ?? run.task.name;
  const sources = run.data.train.map((source) => {
    const local = /^[./~]|^[A-Za-z]:/.test(source.dataset);
    const parts = source.dataset.split(/[\\/]/).filter(Boolean);
    // Of a local file, the folder says more than `train-00000-of-00004.parquet`.
    const name = local && /\.\w+$/.test(parts.at(-1)) ? parts.at(-2) : parts.at(-1);
    return source.subset ? `${name} (${source.subset})` : name;
  });
  const data = new Intl.ListFormat("en").format([...new Set(sources)].slice(0, 3));
  evaluated = run.data.evaluation !== null;
  byId("lede").textContent =
    `Volunteers train one ${task} model together over the Internet, on ${data}. ` +
    `Every ${count(run.global_batch)} samples, from whoever is here, it takes one step.`;
  if (state) showFigures();
}

function showStatus() {
  const status = state?.status ?? "starting";
  byId("status").dataset.status = connected ? status : "offline";
  byId("status-text").textContent = connected ? STATUS[status] : "Connecting";
  document.title = state ? `${STATUS[status]} · step ${count(state.step)} · ${state.name}` : document.title;
}

function showAlert() {
  let text = "";
  if (!connected && state) {
    text = "This page has lost its server and is trying to reach it again. Below is what it last heard.";
  } else if (state?.status === "coordinator lost") {
    text = "The organizer's coordinator cannot be heard. Volunteers train on without it, and it catches up from them when it is back.";
    if (state.message) text += ` Last word: ${state.message}`;
  } else if (state?.problem) {
    text = `For the moment ${state.problem}.`;
  }
  // Written only when it differs, or a screen reader would hear it again and again.
  if (byId("alert").textContent !== text) byId("alert").textContent = text;
  byId("alert").hidden = !text;
}

function showFigures() {
  const { evaluation } = state;
  countUp("step", state.step, count);
  const left = state.total_steps - state.step;
  const pace = state.seconds_per_step;
  let progress = `of ${count(state.total_steps)}`;
  if (pace && left > 0 && state.status === "training") progress += `, about ${duration(pace * left)} to go`;
  byId("step-note").textContent = progress;
  countUp("samples", state.samples_total, large);
  byId("samples-note").textContent = pace ? `a step every ${duration(pace)}` : `${count(state.global_batch)} to a step`;
  byId("loss").textContent = loss(state.loss);
  const first = history.steps.find((step) => step.loss !== null);
  byId("loss-note").textContent = first ? `from ${loss(first.loss)} at the start` : "";
  byId("evaluation").textContent = loss(evaluation?.last.loss);
  byId("evaluation-note").textContent = evaluation
    ? `from ${loss(evaluation.first.loss)}, at step ${count(evaluation.last.step)}`
    : evaluated ? "on data it has not seen" : "not measured in this run";
  const blind = state.status === "coordinator lost"; // then nobody tells us who is there
  byId("volunteers").textContent = blind ? "–" : count(state.volunteers);
  byId("volunteers-note").textContent = state.volunteers && !blind ? `${rate(state.samples_per_second)} samples/s together` : "";
}

const shownNumbers = new Map();

/** Lets a number run up to its new value, where motion is welcome. */
function countUp(id, value, format) {
  const from = shownNumbers.get(id) ?? value;
  shownNumbers.set(id, value);
  const element = byId(id);
  if (from === value || document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches) {
    if (from === value && element.dataset.running) return; // already on its way there
    element.textContent = format(value);
    return;
  }
  const begin = performance.now();
  element.dataset.running = "yes";
  const frame = (now) => {
    if (shownNumbers.get(id) !== value) return; // a newer value has taken over
    const part = Math.min(1, (now - begin) / 700);
    element.textContent = format(Math.round(from + (value - from) * (1 - (1 - part) ** 3)));
    if (part < 1) requestAnimationFrame(frame);
    else delete element.dataset.running;
  };
  requestAnimationFrame(frame);
}

function showBatch() {
  const { batch, global_batch: size } = state;
  const live = state.status === "training";
  const step = `Global step ${count(batch.step)}`;
  const titles = { training: `${step} is filling`, finished: "The run is finished", "coordinator lost": `${step} was filling` };
  byId("batch-title").textContent = titles[state.status] ?? `${step} is next`;
  showReady();
  const bar = byId("batch-bar");
  bar.classList.toggle("emptied", bar.dataset.step !== String(batch.step));
  bar.dataset.step = batch.step;
  // A batch may run over while it is averaged; then the whole bar is what there is.
  const whole = Math.max(size, batch.samples);
  keyed(
    bar,
    batch.shares.filter((share) => share.samples > 0),
    (share) => share.peer,
    () => document.createElement("span"),
    (element, share) => {
      element.className = `share hue-${hueOf(share.peer)}`;
      element.style.flexBasis = `${(100 * share.samples) / whole}%`;
    },
  );
  bar.classList.toggle("idle", !live);
  bar.setAttribute(
    "aria-label",
    `${count(batch.samples)} of ${count(size)} samples, ${percent(batch.samples, size)} of the batch`,
  );
}

function showReady() {
  if (!state) return;
  const { batch, global_batch: size } = state;
  let text = `${count(batch.samples)} of ${count(size)} samples`;
  if (state.status === "training" && connected) {
    const seconds = readyAt === null ? null : Math.round((readyAt - Date.now()) / 1000);
    if (batch.samples >= size) text += ", averaging";
    else if (seconds !== null) text += seconds > 0 ? `, full in about ${duration(seconds)}` : ", full any moment";
  }
  byId("batch-note").textContent = text;
}

function showPeers() {
  const { peers, global_batch: size, peer_count: all } = state;
  const names = tally(peers);
  keyed(
    byId("peers"),
    peers.slice(0, PEERS_SHOWN),
    (peer) => peer.peer,
    () => {
      const item = build("li", "peer");
      item.append(build("span", "swatch"), build("bdi", "name"), build("span", "share-text"), build("span", "detail"));
      item.firstChild.setAttribute("aria-hidden", "true");
      return item;
    },
    (item, peer) => {
      const [swatch, name, share, detail] = item.children;
      swatch.className = peer.follower || !peer.current ? "swatch hollow" : `swatch hue-${hueOf(peer.peer)}`;
      setText(name, nameOf(peer, names));
      if (peer.follower) setText(share, "coordinator");
      else setText(share, peer.current ? percent(peer.samples, size) : "catching up");
      const device = /[^\p{C}\p{Z}]/u.test(peer.device) ? peer.device : "unknown device";
      setText(detail, peer.follower ? device : `${device}, ${rate(peer.samples_per_second)} samples/s`);
    },
  );
  const hidden = all - Math.min(peers.length, PEERS_SHOWN);
  let note = "";
  if (hidden > 0) note = `and ${plural(hidden, "more peer")}.`;
  else if (state.status === "waiting for volunteers") note = "Nobody is training yet. The first volunteer sets it going.";
  else if (state.status === "paused") note = "The organizer has paused the run. Volunteers wait until it goes on.";
  else if (state.status === "starting") note = state.message ? `The coordinator says: ${state.message}.` : "The coordinator is starting.";
  byId("peers-note").textContent = note;
}

function showContributors() {
  const { contributors, contributor_count: all, samples_total: total } = state;
  const names = tally(contributors);
  const here = new Set(state.peers.map((peer) => peer.peer));
  const most = contributors[0]?.samples ?? 1;
  byId("contributors-note").textContent = all ? plural(all, "contributor") : "nobody yet";
  keyed(
    byId("contributors"),
    everyContributor ? contributors : contributors.slice(0, CONTRIBUTORS_SHOWN),
    (contributor) => contributor.peer,
    () => {
      const item = build("li", "contributor");
      const bar = build("span", "bar");
      bar.append(build("span", "bar-fill"));
      item.append(build("bdi", "name"), build("span", "amount"), bar, build("span", "detail"));
      return item;
    },
    (item, contributor) => {
      const [name, amount, bar, detail] = item.children;
      setText(name, nameOf(contributor, names));
      setText(amount, brief(contributor.samples));
      bar.firstChild.style.width = `${(100 * contributor.samples) / most}%`;
      const present = here.has(contributor.peer);
      item.classList.toggle("present", present);
      const seen = present ? "here now" : ago(contributor.last_seen);
      setText(detail, `${percent(contributor.samples, total)} in ${plural(contributor.steps, "step")}, ${seen}`);
    },
  );
  const more = byId("contributors-more");
  more.hidden = contributors.length <= CONTRIBUTORS_SHOWN;
  more.setAttribute("aria-expanded", String(everyContributor));
  setText(more, everyContributor ? "Show fewer" : `Show ${all > contributors.length ? "the first " : "all "}${count(contributors.length)}`);
}

function showSkills() {
  const { evaluation, samples } = state;
  const metrics = Object.entries(evaluation?.last.metrics ?? {});
  byId("skills-section").hidden = !metrics.length && !samples.length;
  if (evaluation) setText(byId("skills-note"), `on text it has not seen, at step ${count(evaluation.last.step)}`);
  const inHundred = (share) => (share === undefined ? undefined : Math.round(100 * share));
  keyed(
    byId("skills"),
    metrics,
    ([name]) => name,
    () => build("li", ""),
    (item, [name, share]) => {
      const first = evaluation.first.step < evaluation.last.step ? evaluation.first.metrics[name] : undefined;
      const told = SKILLS[name] ?? ((now) => `${name}: ${now} of 100.`);
      setText(item, told(inHundred(share), inHundred(first)));
    },
  );
  byId("samples-title").hidden = !samples.length;
  keyed(
    byId("fill-mask"),
    samples.map((sample, index) => ({ ...sample, index })),
    (sample) => sample.index,
    () => {
      const item = build("li", "");
      const sentence = build("p", "");
      sentence.dir = "auto";
      sentence.append(build("span", ""), build("mark", "guess"), build("span", ""));
      item.append(sentence, build("p", "detail"));
      return item;
    },
    (item, { before, guess, truth, after }) => {
      const [sentence, verdict] = item.children;
      const right = guess === truth;
      [before, guess || "nothing", after].forEach((text, index) => setText(sentence.children[index], text));
      item.classList.toggle("right", right);
      setText(verdict, right ? "right" : `it was: ${truth}`);
    },
  );
}

function showNotices() {
  byId("notices-section").hidden = !state.notices.length;
  keyed(
    byId("notices"),
    state.notices.toReversed(),
    (notice) => `${notice.time} ${notice.text}`,
    () => {
      const item = build("li", "notice");
      item.append(build("bdi", ""), build("span", "detail"));
      return item;
    },
    (item, notice) => {
      setText(item.children[0], notice.text);
      setText(item.children[1], ago(notice.time));
    },
  );
}

function showJoin() {
  const { hostname } = location;
  let note = "One command joins. Stop whenever you like.";
  if (state.refusal === "over") note = "This run is finished. Thank you to everyone who took part.";
  else if (state.refusal === "starting") note = "Joining opens as soon as the coordinator is ready.";
  else if (state.refusal === "full") note = "As many train already as this run has room for. Please come back later.";
  else if (/^(localhost|127\.|\[::1\])/.test(hostname)) note += " This address works on this computer only.";
  byId("join-note").textContent = note;
}

function showHistory() {
  const empty = history.steps.length === 0;
  byId("chart-empty").hidden = !empty;
  for (const id of ["chart", "legend", "table-details"]) byId(id).hidden = empty;
  if (!empty) drawChart(byId("chart"), history);
  if (byId("table-details").open) fillTable(byId("table-body"), history);
  if (state) showFigures();
}

// ---- the spoken summary -------------------------------------------------------------------------------------

let announced = { text: "", status: "", at: 0 };

/** What a screen reader says: at once when the status changes, else at most every half minute. */
function announce() {
  const soon = announced.status === state.status && Date.now() - announced.at < SUMMARY_PAUSE;
  if (soon) return;
  let text = `${STATUS[state.status]}. Global step ${count(state.step)} of ${count(state.total_steps)}, ${plural(state.volunteers, "volunteer")}.`;
  if (state.loss !== null) text += ` Training loss ${loss(state.loss)}.`;
  if (state.evaluation) text += ` Evaluation loss ${loss(state.evaluation.last.loss)}.`;
  if (text === announced.text) return;
  announced = { text, status: state.status, at: Date.now() };
  byId("summary").textContent = text;
}

// ---- small tools --------------------------------------------------------------------------------------------

function build(tag, className) {
  const element = document.createElement(tag);
  element.className = className;
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the children of `parent` match `items`, keeping those that stay so that they can move smoothly. */
function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = keyOf(item);
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create();
      child.dataset.key = key;
    }
    update(child, item);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  for (const child of old.values()) child.remove();
}

function tally(people) {
  const names = new Map();
  for (const { name } of people) names.set(visibleName(name), (names.get(visibleName(name)) ?? 0) + 1);
  return names;
}

/** The name, with the end of the peer id where several share it. */
function nameOf({ peer, name }, names) {
  const shown = visibleName(name);
  return names.get(shown) > 1 ? `${shown} …${peer.slice(-4)}` : shown;
}

const hues = new Map();

/** A colour for each peer: the same on every reload unless two peers would have to share it. */
function hueOf(peer) {
  if (!hues.has(peer)) {
    let hue = [...peer].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) >>> 0, 7) % HUES;
    const taken = new Set(state.peers.map((other) => hues.get(other.peer)));
    for (let tries = 0; tries < HUES && taken.has(hue); tries += 1) hue = (hue + 5) % HUES;
    hues.set(peer, hue);
  }
  return hues.get(peer);
}

async function copyCommand() {
  const text = byId("join-command").textContent;
  let copied = true;
  try {
    await navigator.clipboard.writeText(text); // only there on https and on this computer
  } catch {
    getSelection().selectAllChildren(byId("join-command"));
    copied = document.execCommand("copy");
  }
  byId("join-copy").textContent = copied ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (byId("join-copy").textContent = "Copy"), 2_000);
}

// ---- begin --------------------------------------------------------------------------------------------------

// The page may live below a path, as behind a proxy.
const address = new URL(".", location.href).href.replace(/\/$/, "");
byId("join-command").textContent = `dedloc join ${address}`;
byId("join-install").textContent = `pip install -r ${address}/requirements.txt`;
byId("join-copy").addEventListener("click", copyCommand);
byId("contributors-more").addEventListener("click", () => {
  everyContributor = !everyContributor;
  showContributors();
});
byId("table-details").addEventListener("toggle", () => fillTable(byId("table-body"), history));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showHistory);
setInterval(showReady, 1_000);
listen("api/events", ["state", "change", "history"], onEvent, onConnection);
