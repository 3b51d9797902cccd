// For whoever runs this: pause, finish, announce, go back, put somebody out, and what the coordinator has to say.

import { build, keyed, section, setName, setText } from "../dom.js";
import { ago, at, bytes, plural } from "../format.js";
import { nameOf, tally } from "../names.js";
import { keepAsking } from "../run.js";
import { send } from "../server.js";
import { confirmation } from "./confirmation.js";
import { viewHead } from "./head.js";
import { nameOfCheckpoint, rewindForm } from "./rewind.js";

const ASK_PAUSE = 5_000; // alerts come without a change of the run's revision

export function show(root, { signal }) {
  const head = viewHead("Organizer", signal);
  setText(head.lede, "Only whoever was given the organizer's link can give orders here.");
  const page = build("div", { class: "page" });
  const said = build("p", { class: "said", role: "status" });
  root.append(head.element, page);
  let desk = null; // what is shown to an organizer, once it is known to be one

  async function order(name, body) {
    const answer = await send(`api/organizer/${name}`, body);
    const refused =
      answer.values?.message ?? answer.values?.detail?.[0]?.msg ?? "the server cannot be reached; try again";
    setText(said, answer.status === 200 ? "" : `Not done: ${refused}.`);
    if (answer.status === 200 || answer.status === 401) take(answer);
    return answer.status === 200;
  }

  function take({ status, values }) {
    if (status === 401) {
      desk = null;
      page.replaceChildren(locked());
    } else if (status === 200) {
      if (!desk) {
        desk = makeDesk(order, signal);
        page.replaceChildren(said, ...desk.elements);
      }
      desk.update(values);
    } else if (status && !desk) {
      page.replaceChildren(
        build("p", {
          class: "empty",
          text: status === 404 ? "This dashboard takes no orders." : (values?.message ?? "Something went wrong."),
        }),
      );
    }
  }

  const again = keepAsking(() => "api/organizer", take, signal);
  const clock = setInterval(() => desk && !document.hidden && again(), ASK_PAUSE);
  signal.addEventListener("abort", () => clearInterval(clock));
}

function locked() {
  return build(
    "div",
    { class: "notice" },
    build("h2", { text: "You are not logged in" }),
    build(
      "p",
      {},
      "Open the organizer's link in this browser. ",
      build("code", { text: "dedloc launch" }),
      " prints it when it starts, and ",
      build("code", { text: "dedloc run admin-link RUN" }),
      " prints it again, with the coordinator's folder, on the machine that runs it.",
    ),
  );
}

function makeDesk(order, signal) {
  const switches = controls(order);
  const announce = announceForm(order);
  const rewind = rewindForm(order);
  const people = peopleControls(order, signal);
  const alerts = listOf("Alerts", "Nothing to worry about.", ({ time, kind, text }) => [text, `${kind}, ${ago(time)}`]);
  const checkpoints = listOf("Checkpoints", "None yet.", (kept) => [
    nameOfCheckpoint(kept),
    `${bytes(kept.bytes)}, ${ago(kept.time)}`,
  ]);
  const restarts = listOf("Restarts", "No training had to start again.", ({ name, reason }) => [reason, name]);
  const orders = listOf("Orders given", "None yet.", ({ time, order: name, text }) => [
    text ? `${name}: ${text}` : name,
    at(time),
  ]);
  const columns = build(
    "div",
    { class: "desk" },
    build("div", {}, switches.element, announce.element, rewind.element, people.element),
    build("div", {}, alerts.element, restarts.element, checkpoints.element, orders.element),
  );

  function update(values) {
    switches.update(values);
    announce.update(values.announcement);
    rewind.update(values);
    people.update(values.kicked);
    alerts.update(values.alerts);
    restarts.update(values.restarts);
    checkpoints.update(values.checkpoints);
    orders.update(values.orders);
  }

  return { elements: [columns], update };
}

/** Pause, resume, checkpoint and, when asked twice, cooldown and finish. */
function controls(order) {
  const now = build("p", { class: "standing" });
  const pause = build("button", { type: "button", class: "primary", on: { click: () => order(pause.dataset.order) } });
  const checkpoint = build("button", {
    type: "button",
    class: "plain",
    text: "Checkpoint now",
    on: { click: () => order("checkpoint") },
  });
  const finish = build("button", {
    type: "button",
    class: "danger",
    text: "Finish the run",
    on: { click: () => dialog.open() },
  });
  const dialog = confirmation(
    "Finish the run?",
    "The model stays as it is after the present global step, and all volunteers are sent home with thanks. " +
      "The coordinator stays to show and hand out what was reached; you can let the run go on later.",
    "Go on training",
    "Finish it",
    () => order("finish"),
  );
  const falling = decayDialog(order);
  const decay = build("button", {
    type: "button",
    class: "plain",
    text: "Cooldown",
    on: { click: () => falling.showModal() },
  });
  const buttons = build("p", { class: "buttons" }, pause, checkpoint, decay, finish);
  const part = section("The run", now, buttons, falling, dialog.element);

  function update({ paused, finishing, decays, decay: ordered }) {
    const goesOn = ordered
      ? `Its learning rate falls, or will from the next global step on, over ${plural(ordered.steps, "step")}. Then it ends.`
      : "It goes on.";
    setText(
      now,
      finishing
        ? "It is over, or will be after the present global step."
        : paused
          ? "It is paused. Volunteers wait."
          : goesOn,
    );
    decay.hidden = !decays;
    decay.disabled = finishing || Boolean(ordered);
    pause.dataset.order = paused || finishing ? "resume" : "pause";
    setText(pause, finishing ? "Let it go on" : paused ? "Resume" : "Pause");
    finish.disabled = finishing;
  }

  return { element: part.section, update };
}

/** Asks over how many global steps the learning rate is to fall. */
function decayDialog(order) {
  const steps = build("input", { id: "decay-steps", type: "number", min: "1", step: "1", required: true });
  const dialog = build(
    "dialog",
    { "aria-labelledby": "decay-title" },
    build("h2", { id: "decay-title", text: "Let the learning rate fall?" }),
    build("p", {
      text:
        "From the next global step on it falls to its end, which is where a model becomes good. " +
        "Then the run is over. Only going back to a checkpoint of before takes this back.",
    }),
    build(
      "form",
      {
        method: "dialog",
        on: {
          submit: () => order("cooldown", { steps: Number(steps.value) }),
        },
      },
      build("label", { for: "decay-steps", text: "Over so many global steps" }),
      steps,
      build(
        "p",
        { class: "buttons" },
        build("button", {
          type: "button",
          class: "plain",
          text: "Not yet",
          autofocus: true,
          on: { click: () => dialog.close() },
        }),
        build("button", { type: "submit", class: "danger", text: "Let it fall" }),
      ),
    ),
  );
  return dialog;
}

function announceForm(order) {
  const text = build("textarea", {
    id: "announcement",
    rows: "3",
    maxlength: "200",
    placeholder: "What everyone should know",
  });
  const tell = build("button", { type: "submit", class: "primary", text: "Announce" });
  const clear = build("button", {
    type: "button",
    class: "plain",
    text: "Take it down",
    on: { click: () => order("announce", { text: "" }) },
  });
  const present = build("p", { class: "standing", dir: "auto" });
  const form = build(
    "form",
    {
      on: {
        submit: async (event) => {
          event.preventDefault();
          const words = text.value.trim().replace(/\s+/g, " "); // an announcement is one line
          if (words && (await order("announce", { text: words }))) text.value = "";
        },
      },
    },
    build("label", { for: "announcement", text: "Shown at the top of the page and in every volunteer's notebook" }),
    text,
    build("p", { class: "buttons" }, tell, clear),
  );
  const part = section("Announcement", present, form);

  function update(told) {
    setText(present, told ? `“${told.text}”` : "There is none now.");
    clear.hidden = !told;
  }

  return { element: part.section, update };
}

/** Everyone in the swarm with a button to send them away, and those who are away with one to let them in again. */
function peopleControls(order, signal) {
  const here = build("ul", { class: "admit" });
  const out = build("ul", { class: "admit" });
  const outTitle = build("h3", { text: "Sent away" });
  let asked = ""; // about whom the dialog is
  const dialog = confirmation(
    "Let in again?",
    "",
    "Keep it away",
    "Let it in",
    () => order("unban", { peer: asked }),
  );
  const part = section("Who takes part", here, outTitle, out, dialog.element);
  keepAsking(
    () => "api/peers",
    ({ status, values }) => {
      if (status !== 200) return;
      const peers = values.peers.filter((peer) => !peer.follower);
      const names = tally(peers);
      setText(part.note, peers.length ? "" : "nobody is here");
      rows(
        here,
        peers.map((peer) => ({ ...peer, shown: nameOf(peer, names) })),
        "Send away",
        (peer) => order("kick", { peer }),
      );
    },
    signal,
  );

  function update(kicked) {
    outTitle.hidden = !kicked.length;
    rows(
      out,
      kicked.map((one) => ({ ...one, shown: nameOf(one), remark: remarkOn(one) })),
      "Let in again",
      (peer, { why }) => {
        if (!why) return order("unban", { peer });
        asked = peer;
        return dialog.open(
          `It was found to cheat: ${why}. Once it is let in, it may join again, and all that it gave is to its credit.`,
        );
      },
    );
  }

  return { element: part.section, update };
}

function remarkOn({ why, evidence }) {
  return evidence ? `${why}. See ${evidence} in the run's folder.` : why;
}

function rows(list, people, action, act) {
  keyed(
    list,
    people,
    (person) => person.peer,
    (person) =>
      build(
        "li",
        {},
        build("bdi", { class: "name" }),
        build("small", { text: person.remark ?? "" }),
        build("button", { type: "button", class: "plain", text: action, on: { click: () => act(person.peer, person) } }),
      ),
    (item, person) => {
      setName(item.firstChild, person.shown);
      item.lastChild.setAttribute("aria-label", `${action}: ${person.shown}`);
    },
  );
}

/** A section that lists things in a line each: `words` gives the text and the remark. */
function listOf(title, none, words) {
  const list = build("ul", { class: "news" });
  const empty = build("p", { class: "empty", text: none });
  const part = section(title, list, empty);

  function update(items) {
    empty.hidden = items.length > 0;
    list.replaceChildren(
      ...items.map((item) => {
        const [text, remark] = words(item);
        return build("li", {}, build("bdi", { text }), build("span", { class: "note", text: remark }));
      }),
    );
  }

  return { element: part.section, update };
}
