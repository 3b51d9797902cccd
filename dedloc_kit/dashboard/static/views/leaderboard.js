// Everyone in a table: sorted, searched and paged by the server.

import { build, choices, keyed, section, setName, setText } from "../dom.js";
import { ago, brief, count, duration, plural, visibleDevice } from "../format.js";
import { me, nameOf, pageOf, tally } from "../names.js";
import { pager } from "../pages.js";
import { keepAsking } from "../run.js";

const PAGE = 25;
const TYPING_PAUSE = 250; // milliseconds
const COLUMNS = [
  ["", "rank"],
  ["Name", "who"],
  ["Samples", "number"],
  ["", "part"],
  ["Per day lately", "number recent"],
  ["Time given", "number given"],
  ["Devices", "devices"],
  ["Sessions", "number sessions"],
  ["Here since", "since"],
  ["Last seen", "seen"],
];

export function leaderboard(signal) {
  const asked = { sort: "total", search: "" };
  const body = build("tbody");
  const pages = pager(PAGE, () => {
    again();
    part.heading.scrollIntoView({ block: "start" });
  });
  let typing = null;
  const search = build("input", {
    type: "search",
    placeholder: "Search names",
    "aria-label": "Search names",
    maxlength: "64",
    on: {
      input: (event) => {
        clearTimeout(typing);
        typing = setTimeout(() => ask({ search: event.target.value.trim() }), TYPING_PAUSE);
      },
    },
  });
  const sorts = { total: "All time", recent: "Lately", name: "Name" };
  const controls = build(
    "div",
    { class: "controls" },
    choices("Sort by", sorts, "total", (sort) => ask({ sort })),
    search,
  );
  const head = build(
    "tr",
    {},
    ...COLUMNS.map(([text, kind]) =>
      build("th", { scope: "col", class: kind }, text || build("span", { class: "visually-hidden", text: kind })),
    ),
  );
  const table = build("table", { class: "board" }, build("thead", {}, head), body);
  const scroll = build(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": "Everyone in a table" },
    table,
  );
  const part = section("Leaderboard", controls, scroll, pages.element);

  const path = () => `api/people?${new URLSearchParams({ ...asked, offset: pages.offset(), limit: PAGE })}`;
  const again = keepAsking(path, ({ status, values }) => status === 200 && showPage(values), signal);

  function ask(change) {
    Object.assign(asked, change);
    pages.first();
    again();
  }

  function showPage({ total, people }) {
    if (pages.offset() && pages.offset() >= total) ask({}); // fewer match by now
    const names = tally(people);
    const most = Math.max(1, ...people.map((person) => person.samples));
    keyed(
      body,
      people,
      (person) => person.peer,
      row,
      (element, person) => fillRow(element, person, names, most),
    );
    pages.element.hidden = total <= PAGE && !asked.search;
    const all = total ? plural(total, "person", "people") : `No name has “${asked.search}” in it.`;
    pages.show(total, people.length, all);
  }

  return part.section;
}

function row() {
  const cells = COLUMNS.map(([, kind]) => build(kind === "who" ? "th" : "td", { class: kind }));
  cells[1].scope = "row";
  cells[1].append(
    build("a", { class: "name" }),
    build("span", { class: "badge you", text: "you" }),
    build("span", { class: "badge now", text: "now" }),
    build("span", { class: "badge away", text: "sent away" }),
    build("bdi", { class: "team" }),
  );
  cells[3].append(build("span", { class: "bar", "aria-hidden": "true" }, build("i")));
  return build("tr", {}, ...cells);
}

function fillRow(element, person, names, most) {
  const [rank, who, samples, part, recent, given, devices, sessions, since, seen] = element.children;
  const [link, you, now, away, team] = who.children;
  setText(rank, count(person.rank));
  link.href = pageOf(person.peer);
  setName(link, nameOf(person, names));
  you.hidden = person.peer !== me();
  now.hidden = !person.active || person.sent_away;
  away.hidden = !person.sent_away;
  setText(team, person.team);
  setText(samples, brief(person.samples));
  samples.title = `${count(person.samples)} in ${plural(person.steps, "global step")}`;
  part.firstChild.firstChild.style.setProperty("width", `${(100 * person.samples) / most}%`);
  setText(recent, brief(Math.round(person.recent)));
  setText(given, duration(person.seconds));
  const all = person.devices.map(visibleDevice);
  setText(devices, all.length > 1 ? `${all[0]} and ${all.length - 1} more` : (all[0] ?? ""));
  devices.title = all.join(", ");
  setText(sessions, count(person.sessions));
  setText(since, ago(person.first_seen));
  setText(seen, person.active ? "here now" : ago(person.last_seen));
  element.classList.toggle("mine", person.peer === me());
}
