"""How fast a served model writes on lines as people have them, and what the death of a server costs."""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.lib.network import Line
from benchmarks.lib.offloading import offloaded_seconds
from benchmarks.lib.served import ServedOn
from benchmarks.lib.smollm2 import model_folder
from dedloc_kit.errors import UserError

ROUNDS, LOCAL_TOKENS, TOKENS = 5, 10, 20
"""In turn so many tokens are written here and through the servers: the machine's speed may change meanwhile."""
SHORT, LONG = 16, 512
DEATH, AFTER = 200, 20
"""The token at which a server dies, and so many are written after it."""
CLIENTS = (1, 2, 4)
ANSWERS, ANSWER_TOKENS = 20, 24
"""In each fourth of the answers a server is killed, which then begins anew."""
SPANS = {1: ["0:30"], 2: ["0:15", "15:30", "0:15", "15:30"], 3: ["0:10", "10:20", "20:30"]}
"""The spans of the servers for routes of so many spans; those for two can take each other's place."""
PASSAGE = "The rain fell on the roof of the old mill, and the miller counted the drops, one by one, until he slept. "


class Whole:
    """The same model in this process, on one core as each server has."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32)

    def written(self, text: Sequence[int], new: int) -> tuple[list[int], list[float]]:
        """The tokens, and the seconds of each but the first."""
        times: list[float] = []

        def one_more(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            times.append(time.monotonic())
            return torch.zeros(len(ids), dtype=torch.bool)

        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "stopping_criteria": [one_more]}
        out = self._model.generate(torch.tensor([text]), **how)
        waits = [after - before for before, after in pairwise(times)]
        return out[0, len(text) :].tolist(), waits


def network_figures(line: Line) -> dict[str, Any]:
    """All of them, by name; prints them as they come. Raises UserError."""
    whole, figures = Whole(), dict[str, Any](over_limit={}, token_seconds={}, local_seconds={})
    for spans in SPANS:
        users = max(CLIENTS) if spans == 2 else 1
        with _folder() as folder, ServedOn(line, folder, model_folder(), SPANS[spans], users) as served:
            _tokens(line, spans, served, whole, figures)
            if spans == 2:
                _first_token(served, figures)
                _clients(served, figures)
                _lookup(served, figures)
                _recovery(served, figures)
                _answers(served, whole, figures)
    _offloading(figures)
    return figures


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dedloc-serving-") as name:
        yield Path(name)


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", flush=True)


def _text(seed: int, tokens: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000, 40_000) for _ in range(tokens)]


def _tokens(line: Line, spans: int, served: ServedOn, whole: Whole, figures: dict[str, Any]) -> None:
    here, there = list[float](), list[float]()
    for number in range(ROUNDS):
        here += whole.written(_text(number, SHORT), LOCAL_TOKENS)[1]
        there += served.users[0].written(_text(number, SHORT), TOKENS)["waits"][2:]
    wire = (spans + 1) * line.delay_ms / 1000
    ratio = statistics.median(there) / (wire + statistics.median(here))
    figures["over_limit"][str(spans)] = ratio
    figures["token_seconds"][str(spans)] = there
    figures["local_seconds"][str(spans)] = here
    _say(f"{spans} spans", f"{_spread(there)} a token, {_spread(here)} here, the wire {wire:.3f} s: {ratio:.2f} times")


def _spread(seconds: Sequence[float]) -> str:
    low, _, high = statistics.quantiles(seconds, n=4)
    return f"{statistics.median(seconds):.3f} s ({low:.3f} to {high:.3f})"


def _first_token(served: ServedOn, figures: dict[str, Any]) -> None:
    firsts = [served.users[0].written(_text(number, LONG), 2)["waits"][0] for number in range(3)]
    figures["first_token_seconds"] = firsts
    spread = f"{min(firsts):.2f} to {max(firsts):.2f}"
    _say(f"first token of a prompt of {LONG}", f"{statistics.median(firsts):.2f} s ({spread})")


def _clients(served: ServedOn, figures: dict[str, Any]) -> None:
    speeds: dict[str, list[float]] = {}
    for count in CLIENTS:
        users = served.users[:count]
        for number, user in enumerate(users):
            user.ask(_text(number, SHORT), TOKENS)
        speeds[str(count)] = [1 / statistics.fmean(user.answer()["waits"][1:]) for user in users]
        slowest = min(speeds[str(count)]) / statistics.fmean(speeds[str(count)])
        _say(
            f"{count} at once", f"{sum(speeds[str(count)]):.1f} tokens/s in all, the slowest {slowest:.2f} of the mean"
        )
    figures["clients_speeds"] = speeds


def _lookup(served: ServedOn, figures: dict[str, Any]) -> None:
    text = AutoTokenizer.from_pretrained(model_folder())(3 * PASSAGE).input_ids
    ways = [dict[str, Any](), {"prompt_lookup_num_tokens": 8}]
    answers = [served.users[0].written(text, 40, **how) for how in ways]
    plain, lookup = (answer["seconds"] for answer in answers)
    figures["lookup_speedup"] = plain / lookup
    same = answers[0]["text"] == answers[1]["text"]
    _say("prompt lookup", f"{plain / lookup:.1f} times as fast as plain for a text that repeats itself, equal: {same}")


def _recovery(served: ServedOn, figures: dict[str, Any]) -> None:
    user = served.users[0]
    user.ask(_text(0, SHORT), DEATH + AFTER)
    user.wait_for_token(DEATH)
    host = served.host_of(user.route()[-1][0])
    served.servers[host].kill()
    answer = user.answer()
    longest, usual = max(answer["waits"][DEATH - 5 :]), statistics.median(answer["waits"][2:])
    prompts = [served.users[0].written(_text(number, SHORT + DEATH), 2)["waits"][0] for number in range(3)]
    figures["recovery_seconds"] = longest - usual - statistics.median(prompts)
    prompt = f"{statistics.median(prompts):.2f} s for a prompt of that length"
    _say(f"a server dies at token {DEATH}", f"{longest:.2f} s for a token, {usual:.2f} s for others, {prompt}")
    served.servers[host] = served.start(host)
    served.wait_until_served()


def _answers(served: ServedOn, whole: Whole, figures: dict[str, Any]) -> None:
    user, chance, equal, recovered = served.users[0], random.Random(0), 0, 0
    for number in range(ANSWERS):
        text = _text(number, SHORT)
        user.ask(text, ANSWER_TOKENS)
        if number % 4 == 3:
            user.wait_for_token(chance.randrange(2, ANSWER_TOKENS - 2))
            host = served.host_of(chance.choice(user.route())[0])
            served.servers[host].kill()
        answer = user.answer()
        recovered += bool(answer["recoveries"])
        equal += answer["text"] == whole.written(text, ANSWER_TOKENS)[0]
        if number % 4 == 3:
            served.servers[host] = served.start(host)
            served.wait_until_served()
    figures |= {"answers": ANSWERS, "equal_answers": equal}
    _say("answers", f"{equal} of {ANSWERS} are those of the whole model, in {recovered} of them a server was replaced")


def _offloading(figures: dict[str, Any]) -> None:
    """Against two servers."""
    try:
        seconds = offloaded_seconds()
    except UserError as error:
        _say("offloading", f"not measured: {error}")
        return
    served = statistics.median(figures["token_seconds"]["2"])
    figures["over_offloading"] = statistics.median(seconds["held"]) / served
    figures["offloading_seconds"] = seconds
    free = statistics.median(seconds["free"])
    _say(
        "offloading",
        f"{statistics.median(seconds['held']):.2f} s a token with reads of 200 MB/s, {free:.2f} s without a limit; two "
        f"servers are {figures['over_offloading']:.1f} times as fast",
    )
