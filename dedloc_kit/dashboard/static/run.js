// What is known of the run: the latest state and the curves. Views subscribe and are told what has changed.

import { listen } from "./live.js";
import { addressOf, ask, load } from "./server.js";

const MOST_POINTS = 4_000; // beyond this the server's thinned curves are fetched again
const FETCH_PAUSE = 3_000; // lists are fetched again at most so often

export const run = {
  /** As `/api/state` tells it; null until the stream's first event. */
  state: null,
  history: { steps: [], evaluations: [] },
  connected: false,
};

let told;
/** Settled once the first state and its curves are there. */
export const known = new Promise((resolve) => {
  told = resolve;
});

const subscribers = new Set();

/** Calls `act(what)` whenever something is new: "state", "history" or "connection"; until the signal. */
export function subscribe(act, signal) {
  subscribers.add(act);
  signal?.addEventListener("abort", () => subscribers.delete(act));
}

function tell(what) {
  for (const act of subscribers) act(what);
}

export function begin() {
  listen(addressOf("api/events"), ["state", "change", "history"], onEvent, (connected) => {
    run.connected = connected;
    tell("connection");
  });
}

function onEvent(name, values) {
  if (name === "history") {
    addHistory(values);
    return;
  }
  // A new connection begins with the whole state; the server may be a new one too.
  run.state = name === "state" ? values : { ...run.state, ...values };
  if (name === "state") loadHistory().then(told);
  tell("state");
}

async function loadHistory() {
  const values = await load("api/history");
  if (!values) return;
  run.history = values;
  tell("history");
}

function addHistory({ after, last_step: lastStep, steps, evaluations }) {
  const { history } = run;
  const known = history.steps.at(-1)?.step ?? 0;
  if (after > known || lastStep < known || history.steps.length > MOST_POINTS) {
    loadHistory(); // a gap, or the run was taken back to an earlier checkpoint
    return;
  }
  const measured = history.evaluations.at(-1)?.step ?? -1; // there is one of step 0
  history.steps.push(...steps.filter((step) => step.step > known));
  history.evaluations.push(...evaluations.filter((evaluation) => evaluation.step > measured));
  tell("history");
}

const first = []; // the first answers to what a new view has asked

/** Settled once a new view has what it has asked for; a server that is away counts as an answer. */
export const answered = () => Promise.all(first.splice(0));

/**
 * Keeps a list up to date: asks for `path()` now, whenever the run's revision grows, and when the returned function is
 * called; `show({status, values})` gets the answer to the newest question only, until the signal.
 */
export function keepAsking(path, show, signal) {
  let revision;
  let asked = 0;
  let at = 0;
  let timer = null;

  async function askNow() {
    clearTimeout(timer);
    timer = null;
    at = Date.now();
    revision = run.state?.revision;
    asked += 1;
    const mine = asked;
    const answer = await ask(path());
    if (answer.status === 0) revision = null; // to be asked again once the server is back
    if (mine === asked && !signal.aborted) show(answer);
  }

  subscribe((what) => {
    if (what !== "state" || run.state.revision === revision || timer !== null) return;
    timer = setTimeout(askNow, Math.max(0, at + FETCH_PAUSE - Date.now()));
  }, signal);
  signal.addEventListener("abort", () => clearTimeout(timer));
  first.push(askNow());
  return askNow;
}
