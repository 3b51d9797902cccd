"""The commands of `dedloc` with a line about each: what `dedloc --help` shows without importing any of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    name: str
    help: str
    module: str = ""
    """Below `dedloc_kit.cli.commands`; default: the name."""
    below: tuple["Command", ...] = ()
    """The commands of a group, which has no module."""


_PREPARE = (
    Command("tokens", "write a run's training data as token ids", "prepare.tokens"),
    Command("tokenizer", "train the tokenizer that a run names", "prepare.tokenizer"),
    Command("images", "measure a run's picture model, and make codes of its pictures", "prepare.images"),
)
_RUN = (
    Command("pause", "let all volunteers of a run wait", "run.orders"),
    Command("resume", "let a run go on that was paused or finished", "run.orders"),
    Command("finish", "let a run end with the global step that is under way", "run.orders"),
    Command("checkpoint", "save the training state now, and print where", "run.orders"),
    Command("rollback", "let a run go on from an earlier checkpoint, for all who take part", "run.rollback"),
    Command("cooldown", "let the learning rate of a run fall to its end, and the run end with it", "run.cooldown"),
    Command("kick", "send a volunteer away, by its id or name as the live page shows it", "run.peers"),
    Command("unban", "let a volunteer come back that was kicked", "run.peers"),
    Command("announce", "show a message to all volunteers and viewers; an empty one removes it", "run.announce"),
    Command("invite", 'make a personal code for somebody, for a run with access = "invite"', "run.invite"),
    Command("revoke", "withdraw a person's invitations, or lock an account of the Hub out", "run.revoke"),
    Command("admin-link", "print the link with which you steer a run from its live page", "run.admin_link"),
)
COMMANDS: dict[str, tuple[Command, ...]] = {
    "for volunteers": (
        Command("join", "volunteer this machine"),
        Command("serve", "serve a language model together: begin with a model, or join others"),
        Command("chat", "talk with a model: a folder, a run, OWNER/NAME, or a served one"),
        Command("status", "how a run is doing, or a model that is served"),
        Command("doctor", "what keeps this machine from taking part, and how to fix it"),
        Command("demo", "a whole collaboration on this machine"),
    ),
    "for organizers": (
        Command("init", "write the folder of a run to be, from a recipe"),
        Command("check", "whether a run can work, what it takes, and how long"),
        Command("launch", "start or resume a run as its coordinator"),
        Command("export", "write a trained model as other programs use it"),
        Command("evaluate", "score a trained model, also beside published ones"),
        Command("prepare", "make what a run needs before it starts", below=_PREPARE),
        Command("run", "steer a run that is up: pause, finish, kick, announce, invite and more", below=_RUN),
    ),
    "for programs": (
        Command("api", "a served model over HTTP, for programs that speak OpenAI's API"),
        Command("mirror", "a mirror of a run's live page, on this machine"),
        Command("notebook", "write the notebooks in which volunteers join by running one cell"),
    ),
}
"""By heading."""
