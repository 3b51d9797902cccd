"""A chat with a served model: a thread of its own connects and answers, and whoever shows it looks at snapshots."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from dedloc_kit.blocks.ends import USUAL_LENGTH
from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.errors import UserError
from dedloc_kit.inference.answering import Answering
from dedloc_kit.inference.model import AutoDistributedModelForCausalLM, tokenizer_of
from dedloc_kit.inference.network import Lost
from dedloc_kit.inference.turns import Answerer, ChatSnapshot, Turn

MOST = 512
"""Tokens of an answer."""
ROUTE_SECONDS = 1.0
"""How often it is asked who answers, meanwhile."""

Load = Callable[[Callable[[str], None]], tuple[Any, Any]]
"""Connects, and tells meanwhile what goes on: the model and its tokenizer."""

_log = logging.getLogger(__name__)


def chat_with(
    where: str, *, folder: str | Path | None = None, code: str = "", length: int = USUAL_LENGTH, most: int = MOST
) -> "Chat":
    """A chat with the model of an invitation; returns at once, while it connects.

    :param folder: keeps this user's identity and what was fetched
    :param code: what lets this user into a swarm that is not open to all
    :param length: tokens that the model sees at once
    :param most: tokens of an answer
    """
    return Chat(partial(_load, where, folder, code), length=length, most=most)


def _load(where: str, folder: str | Path | None, code: str, told: Callable[[str], None]) -> tuple[Any, Any]:
    if bars := is_progress_bar_enabled():  # they would be drawn into the notebook
        disable_progress_bar()
    try:
        model = AutoDistributedModelForCausalLM.from_pretrained(where, folder=folder, code=code, told=told)
    finally:
        if bars:
            enable_progress_bar()
    try:
        return model, tokenizer_of(model)
    except BaseException:
        model.network.close()
        raise


class Chat:
    """One chat; it ends with `close`, or with this process. What goes wrong is words in the snapshot."""

    def __init__(self, load: Load, *, length: int = USUAL_LENGTH, most: int = MOST) -> None:
        self.tried = threading.Event()
        """It has tried to connect; `say` tries again if that has failed."""
        self.over = threading.Event()
        self._load, self._length, self._most = load, length, most
        self._lock = threading.Lock()
        self._now = ChatSnapshot()
        self._stop = threading.Event()
        self._asked: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._model: Any = None
        self._answering: Answering | None = None
        threading.Thread(target=self._work, name="chat", daemon=True).start()

    def snapshot(self) -> ChatSnapshot:
        return self._now

    def say(self, text: str) -> threading.Event:
        """Begin to answer; the event is set once that has ended. Raises UserError while something else goes on."""
        with self._lock:
            if self._now.phase not in ("ready", "failed"):
                raise UserError("wait until it is connected and the last answer has ended")
            self._stop.clear()
            turns = (*self._now.turns, Turn(text))
            self._now = replace(self._now, phase="answering", text="the model answers", turns=turns)
        answered = threading.Event()
        self._asked.put(answered)
        return answered

    def stop(self) -> None:
        """End the answer after its next token; the chat goes on."""
        with self._lock:
            if self._now.phase == "answering":
                self._stop.set()
                self._now = replace(self._now, phase="stopping", text="stopping after the next word")

    def close(self) -> None:
        """End the chat and leave the swarm; returns at once."""
        self._stop.set()
        self._asked.put(None)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)

    def _work(self) -> None:
        problem = self._tried(self._connect)
        self._set(phase="failed" if problem else "ready", text=problem or "connected")
        self.tried.set()
        while (answered := self._asked.get()) is not None:
            problem = self._tried(self._answer)
            if problem:
                *before, turn = self._now.turns
                self._set(turns=(*before, replace(turn, note=problem)))
            lost = self._answering is None
            self._set(phase="failed" if lost else "ready", text=problem if lost else "connected")
            answered.set()
        self._tried(self._disconnect)
        self._set(phase="over", text="this chat is over; run the cell again for another one")
        self.over.set()

    def _tried(self, do: Callable[[], None]) -> str:
        """What went wrong, in words."""
        try:
            do()
        except Lost as error:
            self._tried(self._disconnect)
            return str(error)
        except NoRoute as error:
            return f"{error} now; wait a moment and ask again, or ask the organizer for more servers"
        except UserError as error:
            return str(error)
        except Exception as error:
            _log.exception("a chat failed")
            return f"an unexpected error: {error!r:.300}"
        return ""

    def _connect(self) -> None:
        self._model, tokenizer = self._load(lambda text: self._set(text=text))
        self._answering = Answering(self._model, tokenizer, self._length, self._most)
        self._set(model=self._model.network.swarm.name)

    def _disconnect(self) -> None:
        answering, self._answering = self._answering, None
        model, self._model = self._model, None
        try:
            if answering is not None:
                answering.close()
        finally:
            if model is not None:
                model.network.close()

    def _answer(self) -> None:
        if self._answering is None:
            self._connect()
        answering = self._answering
        assert answering is not None
        *before, _ = turns = self._now.turns
        looked = 0.0

        def show(turn: Turn) -> None:
            nonlocal looked
            self._set(turns=(*before, turn), forgotten=answering.forgotten)
            if time.monotonic() >= looked + ROUTE_SECONDS:
                self._set(route=_answerers(answering.route()))
                looked = time.monotonic()

        show(answering.write(turns, self._stop, show))


def _answerers(route: list[tuple[str, str, int, int]]) -> tuple[Answerer, ...]:
    return tuple(Answerer(name or f"…{peer[-6:]}", LayerRange(begin, end)) for peer, name, begin, end in route)
