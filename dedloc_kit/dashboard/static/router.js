// Which view belongs to which address, and the way from one to the other without loading the page anew.

import { build, setText } from "./dom.js";
import { answered, known, run } from "./run.js";
import { ROOT, addressOf } from "./server.js";

const VIEWS = [
  { name: "Overview", path: "", pattern: /^$/, open: () => import("./views/overview.js") },
  { name: "People", path: "people", pattern: /^people$/, open: () => import("./views/people.js") },
  { path: "people", pattern: /^people\/([0-9A-Za-z]+)$/, open: () => import("./views/person.js") },
  { name: "Swarm", path: "swarm", pattern: /^swarm$/, open: () => import("./views/swarm.js") },
  {
    name: "Pipeline",
    path: "pipeline",
    pattern: /^pipeline$/,
    open: () => import("./views/pipeline.js"),
    of: (state) => state.stages !== null,
  },
  {
    name: "Experts",
    path: "experts",
    pattern: /^experts$/,
    open: () => import("./views/experts.js"),
    of: (state) => state.experts !== null,
  },
  { name: "Organizer", path: "organizer", pattern: /^organizer$/, open: () => import("./views/organizer.js") },
];

let leaving = new AbortController();
let title = "";

/** Fills the navigation, shows the view of the present address and follows the links from then on. */
export function begin(nav) {
  for (const { name, path, of } of VIEWS.filter((view) => view.name)) {
    const link = build("a", { href: addressOf(path), text: name, hidden: Boolean(of) });
    if (of) known.then(() => (link.hidden = !of(run.state))); // only some runs have it
    nav.append(link);
  }
  addEventListener("click", follow);
  addEventListener("popstate", () => show({ fromLink: false }));
  show({ fromLink: false });
}

/** Goes to an address of this page, such as `people/PEER`. */
export function go(path) {
  history.pushState(null, "", addressOf(path));
  show({ fromLink: true });
}

export function retitle(text = title) {
  title = text;
  const parts = [title, run.state?.name].filter(Boolean);
  if (parts.length) document.title = parts.join(" · ");
}

function follow(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const url = new URL(link.href);
  if (url.origin !== ROOT.origin || link.target || link.hasAttribute("download") || !viewOf(url)) return;
  if (link.getAttribute("href").startsWith("#")) return; // within the view
  event.preventDefault();
  go(url.href);
}

function viewOf(url) {
  if (!url.pathname.startsWith(ROOT.pathname)) return null;
  const path = url.pathname.slice(ROOT.pathname.length);
  for (const view of VIEWS) {
    const match = view.pattern.exec(path);
    if (match) return { ...view, parameter: match[1] };
  }
  return null;
}

async function show({ fromLink }) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const view = viewOf(location) ?? { ...VIEWS[0] };
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.href === addressOf(view.path);
    if (here) link.setAttribute("aria-current", view.name ? "page" : "true");
    else link.removeAttribute("aria-current");
  }
  const module = await view.open();
  if (signal.aborted) return;
  const root = document.getElementById("view");
  root.replaceChildren();
  // Seen all at once: what is read already must not move because something else arrives.
  root.className = `view-${view.path || "overview"} filling`;
  retitle(view.name ?? "");
  await module.show(root, { parameter: view.parameter, signal });
  await answered();
  if (signal.aborted) return;
  root.classList.remove("filling");
  if (fromLink) {
    scrollTo(0, 0);
    root.focus({ preventScroll: true }); // a screen reader begins to read here
    setText(document.getElementById("summary"), document.title);
  }
}
