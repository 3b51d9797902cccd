// Who serves now.

import { build, keyed, section, setName, setText } from "../dom.js";
import { at, brief, brieflyFor, count, large, plural, rate, visibleDevice } from "../format.js";
import { nameOf, tally } from "../names.js";
import { range } from "./layers.js";

const STATES = { joining: "joining", online: "online", moving: "moving", leaving: "leaving" };
const COLUMNS = [
  ["Server", "who"],
  ["Layers", "number"],
  ["Held for", "number"],
  ["Device", "devices"],
  ["Weights", "form"],
  ["State", "state"],
  ["Tokens/s", "number"],
  ["Sessions", "number"],
  ["Free tokens", "number"],
  ["Tokens × layers", "number"],
  ["Mode", "mode"],
];

export function serversPanel() {
  const body = build("tbody");
  const head = build("tr", {}, ...COLUMNS.map(([text, kind]) => build("th", { scope: "col", class: kind, text })));
  const scroll = build(
    "div",
    { class: "wide tall", tabindex: "0", role: "region", "aria-label": "The servers in a table" },
    build("table", { class: "board" }, build("thead", {}, head), body),
  );
  const empty = build("p", { class: "empty", text: "Nobody serves yet." });
  const part = section("Servers now", scroll, empty);

  function update({ servers, server_count: number }) {
    const names = tally(servers);
    keyed(
      body,
      servers,
      (server) => server.peer,
      row,
      (element, server) => fill(element, server, names),
    );
    scroll.hidden = !servers.length;
    empty.hidden = servers.length > 0;
    const shown = number > servers.length ? `the first ${count(servers.length)} of ` : "";
    setText(part.note, number ? `${shown}${plural(number, "server")}` : "");
  }

  return { element: part.section, update };
}

function row() {
  const cells = COLUMNS.map(([, kind]) => build(kind === "who" ? "th" : "td", { class: kind }));
  cells[0].scope = "row";
  cells[0].append(
    build("bdi", { class: "name" }),
    build("span", { class: "badge", text: "another version" }),
    build("bdi", { class: "team" }),
  );
  return build("tr", {}, ...cells);
}

function fill(element, server, names) {
  const [who, layers, time, device, form, state, speed, sessions, room, served, mode] = element.children;
  const [name, badge, team] = who.children;
  setName(name, nameOf(server, names));
  badge.hidden = server.current;
  setText(team, server.team);
  setText(device, visibleDevice(server.device));
  setText(layers, range(server));
  setText(time, brieflyFor(Math.max(0, Math.round(Date.now() / 1000 - server.since))));
  time.title = `with these layers since ${at(server.since)}`;
  setText(form, server.form);
  setText(state, STATES[server.state] ?? "");
  setText(speed, server.decoding ? rate(server.decoding) : "–");
  speed.title = server.prompts ? `${rate(server.prompts)} in prompts` : "not measured yet";
  setText(sessions, count(server.sessions));
  setText(room, brief(server.free_tokens));
  room.title = `of ${count(server.cache_tokens)} that it can remember`;
  setText(served, large(server.served));
  setText(mode, server.reachable ? "reachable" : "client");
  mode.title = server.reachable ? "others can reach it" : "behind a router: reaches others, cannot be reached";
  element.classList.toggle("behind", server.state !== "online" || !server.current);
}
