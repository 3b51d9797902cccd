// What stands around every view: status, alert, the announcement, the theme's button, and the spoken summary.

import { build, setText } from "./dom.js";
import { count, loss, plural } from "./format.js";
import { retitle } from "./router.js";
import { run, subscribe } from "./run.js";
import { addressOf } from "./server.js";
import { LABELS } from "./status.js";
import { themeButton } from "./theme_button.js";
import { voice } from "./voice.js";

const EXPORTS = ["people", "contributions", "steps", "evaluations"];

const byId = (id) => document.getElementById(id);
const say = voice(byId("summary"));

export function begin() {
  const icon = document.querySelector("link[rel=icon]");
  icon.href = icon.href; // as it is from here: the address of the page changes
  byId("home").href = addressOf("");
  byId("configuration").href = addressOf("api/run");
  for (const table of EXPORTS) {
    const link = build("a", { href: addressOf(`api/export/${table}.csv`), text: table, download: true });
    byId("exports").append(table === EXPORTS[0] ? " " : ", ", link);
  }
  themeButton(byId("theme"));
  subscribe((what) => {
    if (what === "history") return;
    showStatus();
    showAlert();
    if (what === "state") {
      setText(byId("run-id"), run.state.run_id);
      retitle();
      summarize();
    }
  });
}

function showStatus() {
  const { state, connected } = run;
  byId("status").dataset.status = connected && state ? state.status : "offline";
  setText(byId("status-text"), connected && state ? LABELS[state.status] : "Connecting");
}

function showAlert() {
  const { state, connected } = run;
  let text = "";
  if (!connected && state)
    text = "This page has lost its server and is trying to reach it again. Below is what it last heard.";
  else if (state?.problem) text = `For the moment: ${state.problem}.`;
  setText(byId("alert"), text);
  byId("alert").hidden = !text;
}

/** What a screen reader says. */
function summarize() {
  const { state } = run;
  let text = `${LABELS[state.status]}. Global step ${count(state.step)} of ${count(state.total_steps)}`;
  if (state.decay) text += `, cooldown: step ${count(state.decay.step)} of ${count(state.decay.steps)}`;
  text += `, ${plural(state.volunteers, "volunteer")}.`;
  if (state.loss !== null) text += ` Training loss ${loss(state.loss)}.`;
  if (state.evaluation) text += ` Evaluation loss ${loss(state.evaluation.last.loss)}.`;
  say(state.status, text);
}
