// The connection to the server: connects by itself for as long as the page is open.

const SILENCE = 45_000; // three missed signs of life: a laptop that slept has a connection that only looks alive
const MAX_WAIT = 20_000;

/**
 * Calls `onEvent(name, values)` for every event and `onConnection(connected)` when the connection comes or goes.
 * The first event of every connection is `state`, complete.
 */
export function listen(url, names, onEvent, onConnection) {
  let source = null;
  let watchdog = 0;
  let failures = 0;

  function connect() {
    source = new EventSource(url);
    for (const name of [...names, "alive"]) {
      source.addEventListener(name, (event) => {
        heard();
        if (name !== "alive") onEvent(name, JSON.parse(event.data));
      });
    }
    source.onopen = () => {
      failures = 0;
      heard();
      onConnection(true);
    };
    // The browser would try again by itself after a lost connection but not after an error answer.
    source.onerror = again;
    heard();
  }

  function heard() {
    clearTimeout(watchdog);
    watchdog = setTimeout(again, SILENCE);
  }

  function again() {
    source.close();
    clearTimeout(watchdog);
    onConnection(false);
    // At random, so that all viewers do not come back in the same moment.
    const wait = Math.min(MAX_WAIT, 1_000 * 2 ** failures) * (0.5 + Math.random() / 2);
    failures += 1;
    setTimeout(connect, wait);
  }

  connect();
}
