"""A chat with a model: a thread of its own loads it and answers, and whoever shows that looks at snapshots."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as logging_of_transformers

from dedloc_kit.blocks.ends import USUAL_LENGTH
from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.errors import UserError
from dedloc_kit.inference.answering import Answering, ChatModel
from dedloc_kit.inference.kinds import Kind
from dedloc_kit.inference.local_chat import local
from dedloc_kit.inference.served_chat import served
from dedloc_kit.inference.turns import READY, WARNING, Answerer, ChatSnapshot, Told, Turn, messages_of
from dedloc_kit.inference.worker_link import Lost

MOST = 512
"""Tokens of an answer."""
ROUTE_SECONDS = 1.0
"""How often it is asked who answers, meanwhile."""

Load = Callable[[Told], ChatModel]
"""Loads the model, or connects to it, and tells meanwhile what goes on. Raises UserError."""

_log = logging.getLogger(__name__)


def chat_with(
    where: str,
    kind: Kind,
    *,
    folder: str | Path | None = None,
    code: str = "",
    length: int = USUAL_LENGTH,
    most: int = MOST,
    **local_settings: Any,
) -> "Chat":
    """A chat with a model; returns at once, while it is loaded.

    :param kind: what is there, as `kinds.kind_of` says
    :param folder: of a served model: keeps this user's identity and what was fetched
    :param code: of a served model: what lets this user into a swarm that is not open to all
    :param length: tokens that the model sees at once
    :param most: tokens of an answer
    :param local_settings: of a model on this machine, as for `local_chat.local`
    """
    if kind == "served":
        return Chat(partial(served, where, folder, code), length=length, most=most, warning=WARNING)
    return Chat(partial(local, where, **local_settings), length=length, most=most)


class Chat:
    """One chat; it ends with `close`, or with this process. What goes wrong is words in the snapshot."""

    def __init__(self, load: Load, *, length: int = USUAL_LENGTH, most: int = MOST, warning: str = "") -> None:
        """:param warning: who else sees what is typed"""
        self.tried = threading.Event()
        """It has tried to load the model; `say` tries again if that has failed."""
        self.over = threading.Event()
        self._load, self._length, self._most = load, length, most
        self._lock = threading.Lock()
        self._now = ChatSnapshot(warning=warning)
        self._stop = threading.Event()
        self._asked: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._model: ChatModel | None = None
        self._answering: Answering | None = None
        threading.Thread(target=self._work, name="chat", daemon=True).start()

    def snapshot(self) -> ChatSnapshot:
        return self._now

    def say(self, text: str) -> threading.Event:
        """Begin to answer; the event is set once that has ended. Raises UserError while something else goes on."""
        with self._lock:
            self._check_idle()
            self._stop.clear()
            turns = (*self._now.turns, Turn(_whole(text)))
            self._now = replace(self._now, phase="answering", text="the model answers", turns=turns)
        answered = threading.Event()
        self._asked.put(answered)
        return answered

    def system(self, text: str) -> None:
        """Tell the model something before the first turn, from now on; nothing takes it back. Raises UserError while
        something goes on."""
        with self._lock:
            self._check_idle()
            self._now = replace(self._now, system=_whole(text))

    def new(self) -> None:
        """Forget all turns. Raises UserError while something goes on."""
        with self._lock:
            self._check_idle()
            self._now = replace(self._now, turns=(), forgotten=0)

    def tell(self, text: str) -> None:
        """Let the snapshot say something until something else goes on."""
        with self._lock:
            if self._now.phase == "ready":
                self._now = replace(self._now, text=text)

    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, `role` and `content` of each message."""
        return messages_of([turn for turn in self._now.turns if turn.answer], self._now.system)

    def stop(self) -> None:
        """End the answer after its next token; the chat goes on."""
        with self._lock:
            if self._now.phase == "answering":
                self._stop.set()
                self._now = replace(self._now, phase="stopping", text="stopping after the next word")

    def close(self) -> None:
        """End the chat and free what its model takes; returns at once."""
        self._stop.set()
        self._asked.put(None)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)

    def _check_idle(self) -> None:
        if self._now.phase not in ("ready", "failed"):
            raise UserError("wait until the model is ready and the last answer has ended")

    def _work(self) -> None:
        problem = self._tried(self._connect)
        self._set(phase="failed" if problem else "ready", text=problem or READY)
        self.tried.set()
        while (answered := self._asked.get()) is not None:
            problem = self._tried(self._answer)
            if problem:
                *before, turn = self._now.turns
                self._set(turns=(*before, replace(turn, note=problem)))
            lost = self._answering is None
            self._set(phase="failed" if lost else "ready", text=problem if lost else READY)
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
        with _quiet_transformers():
            model = self._model = self._load(lambda text: self._set(text=text))
        try:
            self._answering = Answering(model, self._length, self._most)
        except BaseException:
            self._disconnect()
            raise
        self._set(model=model.name, remark=self._answering.remark)

    def _disconnect(self) -> None:
        answering, self._answering = self._answering, None
        model, self._model = self._model, None
        try:
            if answering is not None:
                answering.close()
        finally:
            if model is not None:
                model.close()

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

        show(answering.write(turns, self._now.system, self._stop, show))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its bars and warnings would be drawn into the terminal or the notebook."""
    bars, verbosity = logging_of_transformers.is_progress_bar_enabled(), logging_of_transformers.get_verbosity()
    logging_of_transformers.disable_progress_bar()
    logging_of_transformers.set_verbosity_error()
    try:
        yield
    finally:
        logging_of_transformers.set_verbosity(verbosity)
        if bars:
            logging_of_transformers.enable_progress_bar()


def _answerers(route: Sequence[tuple[str, str, int, int]]) -> tuple[Answerer, ...]:
    return tuple(Answerer(name or f"…{peer[-6:]}", LayerRange(begin, end)) for peer, name, begin, end in route)


def _whole(text: str) -> str:
    """A text without halves of characters, which stand for bytes that are no UTF-8, and which no tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
