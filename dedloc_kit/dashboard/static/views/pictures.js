// The pictures of samples, by the digests that name them.

import { build } from "../dom.js";
import { addressOf } from "../server.js";

/** `here` has the digests of the pictures that can be had: `{picture(digest, alt), note()}`. */
export function pictures(here) {
  const known = new Set(here);
  let lacking = false;

  /** The picture, or a place for it if it is not here. */
  function picture(digest, alt) {
    if (known.has(digest)) {
      const source = addressOf(`api/pictures/${digest}.webp`);
      return build("img", { src: source, alt, title: alt, width: 48, height: 48, loading: "lazy", decoding: "async" });
    }
    lacking = true;
    return build("span", { class: "lacking", role: "img", "aria-label": alt, title: alt });
  }

  /** Why some were not here, to stand below them; nothing if all were. */
  function note() {
    const text = "Some pictures are not here: a mirror has those that came with the coordinator's ledger.";
    return lacking ? [build("p", { class: "note", text })] : [];
  }

  return { picture, note };
}
