// How the run stands, in words.

import { count } from "./format.js";

export const LABELS = {
  starting: "Starting",
  "waiting for volunteers": "Nobody is training",
  training: "Training",
  paused: "Paused",
  finished: "Finished",
  "coordinator lost": "Coordinator lost",
};

/** What a reader should know before the numbers: `{title, text}`; null while the run simply trains. */
export function explanation(state) {
  switch (state.status) {
    case "starting":
      return {
        title: state.step ? "The coordinator is coming back" : "This run has not begun yet",
        text: state.message
          ? `The coordinator says: ${state.message}.`
          : "The coordinator is starting. This page will follow by itself.",
      };
    case "waiting for volunteers":
      return {
        title: "Nobody is training right now",
        text: `Global step ${count(state.step + 1)} waits for a volunteer. Join, and it goes on at once.`,
      };
    case "paused":
      return {
        title: "The organizer has paused the run",
        text: "Nothing is lost. Volunteers who are connected keep their place and go on by themselves.",
      };
    case "coordinator lost":
      return {
        title: "The coordinator cannot be heard",
        text:
          "Volunteers train on without it, and it catches up from them when it is back. " +
          "The numbers here are the last it told." +
          (state.message ? ` Its last word: ${state.message}.` : ""),
      };
    case "finished":
      return {
        title: "The model is finished",
        text: `It has taken its ${count(state.step)} global steps. Thank you to everyone who took part.`,
      };
    default:
      return null;
  }
}
