// What a screen reader says of how things stand: at once when the status changes, else at most every half minute.

const PAUSE = 30_000; // it should not be talked over

/** A function that says a text in this element, which is a live region. */
export function voice(element) {
  let said = { text: "", status: "", at: 0 };

  return (status, text) => {
    if (said.status === status && Date.now() - said.at < PAUSE) return;
    if (text === said.text) return;
    said = { text, status, at: Date.now() };
    element.textContent = text;
  };
}
