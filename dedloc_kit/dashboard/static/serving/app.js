// The page of a model that volunteers serve: what stands around its parts, and the connection to the server.

import { build, setText } from "../dom.js";
import { count, plural, rate } from "../format.js";
import { listen } from "../live.js";
import { addressOf } from "../server.js";
import { themeButton } from "../theme_button.js";
import { voice } from "../voice.js";
import { figures } from "./figures.js";
import { layersPanel, range } from "./layers.js";
import { serversPanel } from "./servers.js";
import { takePart } from "./take_part.js";
import { tokensPanel } from "./tokens.js";

const LABELS = { starting: "Starting", serving: "Serving", incomplete: "Layers are missing", lost: "Server lost" };

const byId = (id) => document.getElementById(id);
const say = voice(byId("summary"));
const name = build("bdi", { id: "name", text: "A model served by volunteers" });
const about = build("p", { class: "lede", dir: "auto", hidden: true });
const how = build("p", { class: "how" });
const parts = [takePart(), figures(), layersPanel(), serversPanel(), tokensPanel(), refusedPanel()];
const [part, numbers, layers, servers, tokens, refused] = parts.map(({ element }) => element);
let state = null;

byId("view").append(
  build(
    "div",
    { class: "band" },
    build("div", { class: "masthead" }, build("div", { class: "introduction" }, build("h1", {}, name), about, how), part),
    numbers,
    layers,
  ),
  build("div", { class: "page" }, servers, tokens, refused),
);
themeButton(byId("theme"));
listen(addressOf("api/events"), ["state", "change"], hear, (connected) => showConnection(connected));

function hear(event, values) {
  state = event === "state" ? values : { ...state, ...values };
  document.title = state.name;
  setText(byId("run-id"), state.run_id);
  setText(byId("version"), state.version);
  setText(name, state.name);
  setText(about, state.about);
  about.hidden = !state.about;
  setText(
    how,
    `Volunteers serve ${shortened(state.model)} together over the Internet: each holds some of its ${count(state.layers)} layers, ` +
      "and an answer goes through all of them. Those who hold them see what is asked, in a form from which the text " +
      "can be recovered.",
  );
  showConnection(true);
  for (const one of parts) one.update(state);
  say(state.status, inWords());
  byId("view").classList.remove("filling");
}

/** A model of the Hub, with the first digits of its commit. */
const shortened = (model) => model.replace(/@([0-9a-f]{7})[0-9a-f]+$/, "@$1");

function showConnection(connected) {
  byId("status").dataset.status = connected && state ? state.status : "offline";
  setText(byId("status-text"), connected && state ? LABELS[state.status] : "Connecting");
  const text = alertText(connected);
  setText(byId("alert"), text);
  byId("alert").hidden = !text;
}

function alertText(connected) {
  if (!state) return "";
  if (!connected)
    return "This page has lost its server and is trying to reach it again. Below is what it last heard.";
  if (state.status === "lost")
    return "The server that tells this page is not heard any more. The others may well go on. Below is what it last told.";
  if (state.status === "incomplete") {
    const bare = state.stretches.filter(({ servers: number }) => number === 0).map(range);
    const which = state.bare_layers === 1 ? `layer ${bare[0]}` : `the layers ${bare.join(", ")}`;
    return `Nobody serves ${which}, so no answer can come. Once somebody does, it goes on.`;
  }
  return "";
}

/** How the model is served, for who does not see the page. */
function inWords() {
  const alone = state.single_layers ? ` ${plural(state.single_layers, "layer")} with one server only.` : "";
  const bare = state.bare_layers ? ` ${plural(state.bare_layers, "layer")} without a server.` : "";
  return (
    `${LABELS[state.status]}. ${plural(state.server_count, "server")}, ${plural(state.sessions, "session")}, ` +
    `${rate(state.speed)} tokens a second.${bare}${alone}`
  );
}

/** Requests that were wrong, by kind. */
function refusedPanel() {
  const list = build("ul", { class: "news" });
  const element = build("section", { "aria-label": "Refused requests" }, build("h2", { text: "Refused requests" }), list);
  return {
    element,
    update({ refused: kinds }) {
      const rows = Object.entries(kinds).sort(([, one], [, other]) => other - one);
      element.hidden = !rows.length;
      list.replaceChildren(
        ...rows.map(([kind, times]) =>
          build("li", {}, build("bdi", { text: kind }), build("span", { class: "note", text: plural(times, "time") })),
        ),
      );
    },
  };
}
