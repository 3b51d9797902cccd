// Requests to the server that the page came from.

/** Where the page lives: perhaps below a path, as behind a proxy. */
export const ROOT = new URL("..", import.meta.url);

export const addressOf = (path) => new URL(path, ROOT).href;

/** What the server says at a path: `{status, values}`; status 0 while it cannot be reached. */
export async function ask(path, options = {}) {
  try {
    const answer = await fetch(addressOf(path), options);
    const values = await answer.json();
    return { status: answer.status, values };
  } catch {
    return { status: 0, values: null };
  }
}

/** The values at a path; null if the server is away or refuses, which the event stream notices and puts right. */
export async function load(path) {
  const { status, values } = await ask(path);
  return status === 200 ? values : null;
}

/** An order to the server, with a JSON body. */
export function send(path, body = {}) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}
