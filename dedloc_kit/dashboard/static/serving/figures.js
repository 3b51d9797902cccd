// The numbers that move.

import { build, figure, setText } from "../dom.js";
import { brief, count, large, percent, plural, rate } from "../format.js";
import { counter } from "../numbers.js";

export function figures() {
  const speed = figure("Tokens a second, one after the other");
  speed.element.className = "leading";
  const servers = figure("Servers");
  const layers = figure("Layers served");
  const sessions = figure("Sessions");
  const served = figure("Tokens a second, served");
  const room = figure("Room for texts");
  const all = [speed, servers, layers, sessions, served, room];
  const element = build(
    "dl",
    { class: "figures", "aria-label": "The swarm in numbers" },
    ...all.map((one) => one.element),
  );
  const whole = (value) => count(Math.round(value));
  const showSpeed = counter(speed.value, rate);
  const showServers = counter(servers.value, whole);
  const showSessions = counter(sessions.value, whole);
  const showServed = counter(served.value, rate);

  function update(state) {
    showSpeed(state.speed || null);
    setText(speed.aside, state.speed ? "at most, through the worst-served layer" : "told once all layers are served");
    showServers(state.server_count);
    const names = new Set(state.servers.map((server) => server.team).filter(Boolean));
    setText(servers.aside, names.size ? `of ${plural(names.size, "team")}` : "volunteers");
    setText(layers.value, `${count(state.layers - state.bare_layers)} of ${count(state.layers)}`);
    setText(layers.aside, state.single_layers ? `${count(state.single_layers)} by one server only` : "");
    showSessions(state.sessions);
    setText(sessions.aside, "on all servers together");
    showServed(state.tokens_per_second);
    setText(served.aside, `${large(state.served)} tokens × layers so far`);
    setText(room.value, percent(state.free_tokens, state.cache_tokens));
    setText(room.aside, `${brief(state.free_tokens)} of ${brief(state.cache_tokens)} tokens`);
  }

  return { element, update };
}
