"""`dedloc api`."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dedloc_kit.cli.options import port, positive
from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.machine.addresses import is_loopback
from dedloc_kit.machine.text_files import read_text

if TYPE_CHECKING:
    from dedloc_kit.api.generating import Served

MIN_KEY = 16
"""Characters: a shorter one might be guessed."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("invitation", metavar="INVITATION", help="to the swarm that serves the model")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="0.0.0.0 lets others ask")
    parser.add_argument("--port", type=port, default=8001, help="0 takes a free one; default: %(default)s")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="holds the key that callers must show; default: anyone may ask"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name of this machine by which callers without a key may reach it; may be given again",
    )
    parser.add_argument(
        "--at-once", type=positive, default=4, metavar="N", help="requests answered at a time; default: %(default)s"
    )


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.api.app import create_app
    from dedloc_kit.api.server import Server
    from dedloc_kit.dashboard.http.sockets import listen, url_of

    console = Console(highlight=False, markup=False)
    key = read_key(options.key_file) if options.key_file else None
    listener = listen(options.host, options.port)  # first: that the port is taken shows at once
    elsewhere = not is_loopback(options.host)
    hosts = [name.lower() for name in (options.host, *options.allow_host)]
    server = Server(create_app(load(options.invitation, options.at_once), key, hosts, elsewhere=elsewhere), listener)
    console.print(f"the API is at {url_of(options.host, listener.getsockname()[1])}/v1", soft_wrap=True)
    if key is None and elsewhere:
        console.print("whoever reaches this address may ask; --key-file FILE lets only those who know a key")
    with suppress(KeyboardInterrupt):
        server.run()


def load(invitation: str, at_once: int) -> "Served":
    """The model that the swarm of an invitation serves."""
    from dedloc_kit.api.generating import Served
    from dedloc_kit.inference.model import AutoDistributedModelForCausalLM, tokenizer_of

    model = AutoDistributedModelForCausalLM.from_pretrained(invitation)
    return Served(model.network.model, model, tokenizer_of(model), at_once)


def read_key(path: Path) -> str:
    """The key in a file. Raises UserError if there is none."""
    try:
        key = read_text(path).strip()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file that holds the key") from None
    except UnicodeDecodeError:
        key = ""
    if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{path} must hold one key of at least {MIN_KEY} letters and digits")
    return key
