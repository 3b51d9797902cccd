"""What happens to a notebook's kernel happens to nobody else: interrupts, restarts and kills leave no orphan."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from dedloc_kit.client import fetch_state
from tests.session.sessions import CHECKOUT, coordinator_of
from tests.swarm.harness import processes_of, wait_until
from tests.tiny import tiny_run

DEADLINE = 180.0
JOIN = """
from dedloc_kit import join
from dedloc_kit.notebook.launcher import open_sessions
me = join({url!r}, folder={folder!r}, devices="cpu", task_module="tests.tiny")
"""
SESSION = "list(open_sessions.values())[0][1]"
CHAT = """
import time
from dedloc_kit import chat
from dedloc_kit.inference import chat as module
from tests.inference.chats import Swarm
swarm = Swarm()
talk = module.Chat(swarm.load, length=256, most=12)
module.chat_with = lambda where, kind, **settings: talk
def wait_for_the_stop():
    while talk.snapshot().phase == "answering" and len(talk.snapshot().turns) == 1:
        time.sleep(0.01)
swarm.before = wait_for_the_stop
"""


class Kernel:
    """A real kernel, as Jupyter starts it."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def run(self, code: str) -> None:
        """Run a cell to its end; fails if it raises."""
        reply = self.client.execute_interactive(code, timeout=DEADLINE, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", []))

    def value(self, expression: str) -> Any:
        """What an expression is worth in the kernel."""
        reply = self.client.execute_interactive(
            "", user_expressions={"it": expression}, timeout=DEADLINE, output_hook=lambda _: None
        )
        found = reply["content"]["user_expressions"]["it"]
        assert found["status"] == "ok", found
        return eval(found["data"]["text/plain"], {})  # noqa: S307  our own number or text

    def wait_for(self, expression: str) -> None:
        wait_until(lambda: bool(self.value(expression)), f"{expression} never came true", DEADLINE)


@contextmanager
def kernel(environment: dict[str, str]) -> Iterator[Kernel]:
    manager = KernelManager()
    manager.start_kernel(env={**os.environ, "PYTHONPATH": CHECKOUT, "TINY_PAUSE": "0.02", **environment})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)


def assert_gone(worker: int) -> None:
    wait_until(lambda: not processes_of(worker), "the training outlived its notebook", 60.0)


@pytest.mark.real
def test_an_interrupt_disturbs_nothing_and_a_restarted_or_killed_kernel_leaves_no_orphan(tmp_path: Path) -> None:
    with coordinator_of(tiny_run(), tmp_path) as coordinator, kernel({}) as notebook:
        cell = JOIN.format(url=coordinator.dashboard.url, folder=str(tmp_path / "volunteer"))
        notebook.run(cell)
        notebook.wait_for(f"{SESSION}.state().session_samples > 0")
        before = notebook.value(f"{SESSION}.state().session_samples")
        notebook.manager.interrupt_kernel()
        notebook.wait_for(f"{SESSION}.state().session_samples > {before + 100}")
        first = notebook.value(f"{SESSION}.worker.pid")

        notebook.run(cell)  # once more: the same session, not a second one
        assert notebook.value(f"{SESSION}.worker.pid") == first

        notebook.manager.restart_kernel()
        notebook.client.wait_for_ready(timeout=DEADLINE)
        assert_gone(first)
        notebook.run(cell)
        notebook.wait_for(f"{SESSION}.state().session_samples > 0")
        second = notebook.value(f"{SESSION}.worker.pid")
        pid = notebook.manager.provisioner.pid  # type: ignore[union-attr]
        os.kill(pid, 9)
        assert_gone(second)


@pytest.mark.soak
def test_on_colab_the_stop_button_of_the_cell_leaves_cleanly(tmp_path: Path) -> None:
    environment = {"COLAB_RELEASE_TAG": "release-colab-20260801", "DEDLOC_HOME": str(tmp_path / "home")}
    with coordinator_of(tiny_run(), tmp_path) as coordinator, kernel(environment) as notebook:
        cell = JOIN.format(url=coordinator.dashboard.url, folder=str(tmp_path / "volunteer"))
        request = notebook.client.execute(cell)  # does not come back by itself
        url = coordinator.dashboard.url
        wait_until(lambda: fetch_state(url).step > 0, "the volunteer never trained", DEADLINE)
        notebook.manager.interrupt_kernel()
        reply = notebook.client.get_shell_msg(timeout=DEADLINE)
        while reply["parent_header"].get("msg_id") != request:
            reply = notebook.client.get_shell_msg(timeout=DEADLINE)
        assert reply["content"]["status"] == "ok", reply["content"]
        assert notebook.value(f"str({SESSION}.snapshot().phase)") == "left"
        assert notebook.value(f"{SESSION}.state().session_samples") > 0
        assert_gone(notebook.value(f"{SESSION}.worker.pid"))


@pytest.mark.soak
def test_on_colab_the_stop_button_ends_an_answer_and_at_the_question_the_chat() -> None:
    with kernel({"COLAB_RELEASE_TAG": "release-colab-20260801"}) as notebook:
        notebook.run(CHAT)
        client = notebook.client
        request = client.execute('chat("http://x", code="c")', allow_stdin=True)

        def question() -> str:
            return str(client.get_stdin_msg(timeout=DEADLINE)["content"]["prompt"])

        assert question() == "You: "
        client.input("hello")
        while "The model answers" not in str(client.get_iopub_msg(timeout=DEADLINE)["content"]):
            pass
        notebook.manager.interrupt_kernel()
        assert question() == "You: "
        client.input("again")
        assert question() == "You: "
        notebook.manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=DEADLINE)
        while reply["parent_header"].get("msg_id") != request:
            reply = client.get_shell_msg(timeout=DEADLINE)
        assert reply["content"]["status"] == "ok", reply["content"]
        notes = "[(turn.asked, turn.note) for turn in talk.snapshot().turns]"
        assert notebook.value(notes) == [("hello", "stopped"), ("again", "cut off after 12 tokens")]
        assert notebook.value("talk.over.is_set()")
