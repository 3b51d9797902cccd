// Who was here when: a row for each peer, a bar for each visit.

import { build, keyed, section, setName, setText } from "../dom.js";
import { at, duration, visibleDevice } from "../format.js";
import { hueOf, nameOf, pageOf, tally } from "../names.js";
import { keepAsking } from "../run.js";
import { tableBeside } from "../table.js";

const ROWS = 24;
const LEAST = 0.4; // percent of the width: a short visit can still be seen

export function timeline(signal) {
  let known = [];
  const rows = build("ul", { class: "timeline" });
  const first = build("span");
  const axis = build("p", { class: "axis note", "aria-hidden": "true" }, first, build("span", { text: "now" }));
  const beside = tableBeside("The visits as a table", ["Name", "Came", "Left", "Device"], () =>
    known.map((visit) => [
      nameOf(visit),
      at(visit.since),
      visit.until === null ? "is here" : at(visit.until),
      visibleDevice(visit.device),
    ]),
  );
  const part = section("Who came and left", rows, axis, beside.element);

  keepAsking(
    () => "api/timeline?limit=200",
    ({ status, values }) => {
      if (status !== 200) return;
      known = values.visits;
      part.section.hidden = !known.length;
      if (known.length) draw();
      beside.refresh();
    },
    signal,
  );

  function draw() {
    const now = Date.now() / 1000;
    const begin = Math.min(...known.map((visit) => visit.since), now - 60);
    const place = (time) => (100 * (Math.min(time, now) - begin)) / (now - begin);
    const peers = new Map();
    for (const visit of known) {
      if (!peers.has(visit.peer)) peers.set(visit.peer, { peer: visit.peer, name: visit.name, visits: [] });
      peers.get(visit.peer).visits.push(visit);
    }
    const names = tally(peers.values());
    const here = ({ visits }) => visits.some((visit) => visit.until === null);
    const shown = [...peers.values()].sort((one, other) => here(other) - here(one)).slice(0, ROWS);
    keyed(
      rows,
      shown,
      (row) => row.peer,
      (row) =>
        build(
          "li",
          {},
          build("a", { class: "name", href: pageOf(row.peer) }),
          build("div", { class: `track ${hueOf(row.peer, shown)}` }),
        ),
      (item, row) => {
        setName(item.firstChild, nameOf(row, names));
        keyed(
          item.lastChild,
          row.visits,
          (visit) => visit.since,
          () => build("i"),
          (bar, visit) => {
            const end = visit.until ?? now;
            bar.style.setProperty("left", `${Math.min(place(visit.since), 100 - LEAST)}%`);
            bar.style.setProperty("width", `${Math.max(LEAST, place(end) - place(visit.since))}%`);
            bar.title = `${at(visit.since)}, for ${duration(Math.max(1, end - visit.since))}`;
          },
        );
      },
    );
    setText(first, at(begin));
    setText(part.note, peers.size > ROWS ? `the ${ROWS} seen last of ${peers.size}` : "");
  }

  return part.section;
}
