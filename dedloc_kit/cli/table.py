"""The commands of `dedloc` with a line about each: what `dedloc --help` shows without importing any of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    name: str
    help: str
    example: str = ""
    """What may stand behind the name; it ends the command's `--help`."""
    module: str = ""
    """Below `dedloc_kit.cli.commands`; default: the name."""
    below: tuple["Command", ...] = ()
    """The commands of a group, which has no module."""


_PREPARE = (
    Command(
        "corpus",
        "clean a run's text: no copies, one language, no held-out text",
        "our-bert/run.toml --language bn",
        "prepare.corpus",
    ),
    Command(
        "tokens", "write a run's training data as token ids", "our-bert/run.toml --push OWNER/NAME", "prepare.tokens"
    ),
    Command("tokenizer", "train the tokenizer that a run names", "our-bert/run.toml", "prepare.tokenizer"),
    Command(
        "images",
        "measure a run's picture model, and encode its pictures",
        "our-drawings/run.toml --shards",
        "prepare.images",
    ),
)
_RUN = (
    Command("pause", "let all volunteers of a run wait", "runs/RUN-ID", "run.orders"),
    Command("resume", "let a run go on that was paused or finished", "runs/RUN-ID", "run.orders"),
    Command("finish", "let a run end with the global step that is under way", "runs/RUN-ID", "run.orders"),
    Command("checkpoint", "save the training state now, and print where", "runs/RUN-ID", "run.checkpoint"),
    Command(
        "rollback",
        "let a run go on from an earlier checkpoint, for all who take part",
        "runs/RUN-ID 1200 --rate 0.5",
        "run.rollback",
    ),
    Command(
        "cooldown",
        "let the learning rate of a run fall to its end, and the run end with it",
        "runs/RUN-ID --steps 500",
        "run.cooldown",
    ),
    Command(
        "kick", "ban a volunteer's machine, by its id or name as the live page shows it", "runs/RUN-ID bob", "run.kick"
    ),
    Command("unban", "let a volunteer come back that was kicked or failed a check", "runs/RUN-ID bob", "run.kick"),
    Command(
        "announce",
        "show a message to all volunteers and viewers; an empty one removes it",
        "runs/RUN-ID 'Half way there!'",
        "run.announce",
    ),
    Command(
        "invite",
        'make a personal code for somebody, for a run with access = "invite"',
        "runs/RUN-ID alice --days 7",
        "run.invite",
    ),
    Command(
        "revoke",
        "withdraw all codes of a person, or lock an account of the Hub out",
        "runs/RUN-ID alice",
        "run.revoke",
    ),
    Command(
        "admin-link", "print the link with which you steer a run from its live page", "runs/RUN-ID", "run.admin_link"
    ),
)
COMMANDS: dict[str, tuple[Command, ...]] = {
    "for volunteers": (
        Command("join", "volunteer this machine", "http://HOST:PORT#ORGANIZER --name Asha"),
        Command(
            "serve",
            "serve a language model together: begin with a folder or OWNER/NAME@COMMIT, or join others",
            "OWNER/NAME@COMMIT --access invite",
        ),
        Command("chat", "talk with a model: a folder, a run, OWNER/NAME, or a served one", "runs/RUN-ID"),
        Command("status", "how a run is doing: step, loss, who gave most; or a served model", "http://HOST:PORT"),
        Command(
            "doctor",
            "what keeps this machine from taking part: memory, disk, clock; with INVITATION ports and the way to it",
            "http://HOST:PORT",
        ),
        Command("demo", "a whole collaboration on this machine", "--volunteers 2 --steps 50"),
    ),
    "for organizers": (
        Command("init", "write the folder of a run to be, from a recipe", "our-model --language sw"),
        Command(
            "check",
            "whether a run can work, what it takes, and how long",
            "our-bert/run.toml --volunteers 20xT4@50mbit",
        ),
        Command(
            "launch",
            "start or resume a run as its coordinator; --hub pushes its model to the Hub",
            "our-bert/run.toml --hub OWNER/NAME",
        ),
        Command(
            "export",
            "write a run's model as a folder of transformers, or as one GGUF file (--to gguf)",
            "runs/RUN-ID our-model --to gguf",
        ),
        Command(
            "evaluate",
            "score a trained model, also beside published ones",
            "OWNER/NAME --against OTHER/NAME --dataset OWNER/TEXT",
        ),
        Command("prepare", "make what a run needs before it starts", below=_PREPARE),
        Command("run", "steer a run that is up", below=_RUN),
    ),
    "for programs": (
        Command(
            "api",
            "a served model over HTTP, for programs that speak OpenAI's API",
            "http://HOST:PORT --key-file key.txt",
        ),
        Command("mirror", "a mirror of a run's live page, on this machine", "http://HOST:PORT --port 8080"),
        Command(
            "notebook",
            "write the notebooks in which volunteers join by running one cell",
            "http://HOST:PORT --output notebooks",
        ),
    ),
}
"""By heading."""
