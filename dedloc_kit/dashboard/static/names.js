// How people are named and which colour is theirs.

import { visibleName } from "./format.js";
import { addressOf } from "./server.js";

const HUES = 12;
const ME = "me";

/** Names to how often they occur: several people may share one. */
export function tally(people) {
  const names = new Map();
  for (const { name } of people) names.set(visibleName(name), (names.get(visibleName(name)) ?? 0) + 1);
  return names;
}

/** The name, with the end of the peer id where several share it. */
export function nameOf({ peer, name }, names) {
  const shown = visibleName(name);
  return names?.get(shown) > 1 ? `${shown} …${peer.slice(-4)}` : shown;
}

export const pageOf = (peer) => addressOf(`people/${peer}`);

const hues = new Map();

/** A class with a colour for each peer: the same on every reload unless it would stand beside its like. */
export function hueOf(peer, neighbours = []) {
  if (!hues.has(peer)) {
    let hue = [...peer].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) >>> 0, 7) % HUES;
    const taken = new Set(neighbours.map((other) => hues.get(other.peer)));
    for (let tries = 0; tries < HUES && taken.has(hue); tries += 1) hue = (hue + 5) % HUES;
    hues.set(peer, hue);
  }
  return `hue-${hues.get(peer)}`;
}

/** The peer whose own link was opened in this browser: notebooks link to `people/PEER#me`. */
export function me() {
  try {
    return localStorage.getItem(ME);
  } catch {
    return null;
  }
}

export function rememberMe(peer) {
  try {
    localStorage.setItem(ME, peer);
  } catch {
    // storage is off: this page still says so, the others will not
  }
}
