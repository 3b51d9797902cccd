// Small tools to build and change elements. Text from others only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";

/** An element with `properties` (class, text, dataset, on, anything else as an attribute) and children. */
export function build(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function buildSvg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets what differs only: a screen reader would hear the same again, and a selection would be lost. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** A name that a person chose, in full when it is pointed at. */
export function setName(element, name) {
  setText(element, name);
  setAttribute(element, "title", name);
}

/** Makes the children of `parent` match `items`, keeping those that stay so that they can move smoothly. */
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  for (const child of old.values()) child.remove();
}

/** A section with its heading: `{section, heading, note}`, where the heading's line has room for a note and more. */
export function section(title, ...children) {
  const heading = build("h2", { text: title });
  const note = build("p", { class: "note" });
  const id = `section-${title.toLowerCase().replace(/\W+/g, "-")}`;
  heading.id = id;
  const head = build("div", { class: "heading" }, heading, note);
  return { section: build("section", { "aria-labelledby": id }, head, ...children), head, heading, note };
}

/** One choice of several, as buttons in a row; `act(value)` when another is taken. */
export function choices(label, options, chosen, act) {
  const group = build("div", { class: "choices", role: "group", "aria-label": label });
  const buttons = Object.entries(options).map(([value, text]) =>
    build("button", {
      type: "button",
      text,
      "aria-pressed": String(value === chosen),
      on: {
        click: (event) => {
          for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
          act(value);
        },
      },
    }),
  );
  group.append(...buttons);
  return group;
}

/** A large number with its name and a remark: `{element, value, aside}`. */
export function figure(name) {
  const value = build("span", { class: "figure", text: "–" });
  const aside = build("span", { class: "aside" });
  return { element: build("div", {}, build("dt", { text: name }), build("dd", {}, value, aside)), value, aside };
}
