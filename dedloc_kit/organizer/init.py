"""`dedloc init`: the folder of a run to be, made from a recipe: run.toml, coordinator.toml, a page, notebooks."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.markup import escape
from rich.prompt import Prompt

from dedloc_kit.config.coordinator import COORDINATOR_FILE, template
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY, public_name
from dedloc_kit.config.swarm import Name
from dedloc_kit.config.task import Source
from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.folder import new_folder
from dedloc_kit.learning.data.text.sentences import DEFAULT_LANGUAGE
from dedloc_kit.notebook.generate import notebooks_to_be
from dedloc_kit.organizer.init_plan import SOURCE, Plan, draws, held_out, learns_text, of_text, source_for
from dedloc_kit.organizer.init_toml import run_toml
from dedloc_kit.organizer.language_data import language_data, recommended, with_schedule
from dedloc_kit.organizer.languages import are_known, find_languages, language_code
from dedloc_kit.resources import recipe, recipes

_TEMPLATE = Path(__file__).with_name("init.md")
PURPOSES = {
    "gpt": "a model that writes: it goes on with a text",
    "causal-pipeline": "the same, too big for any volunteer: each holds one of its stages",
    "experts": "the same, of parts of which each volunteer holds some: its layers are mixtures of experts",
    "encoder": "a model that understands: to search, to sort, to find names",
    "sahajbert": "the same, small enough for slow computers and lines",
    "chat": "a model to talk to: one that writes already learns from conversations",
    "continue": "go on from a model that exists, with your own text and your own words",
    "text-to-image": "a model that draws what a sentence says",
    "swav": "a model that sees: what pictures have in common, learned without labels",
    "albert-demo": "a toy, to see how all this works",
}
"""What each recipe is for, in the words of those who choose."""


def init(plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Write the folder `NAME` of a run to be into the current one; returns its path.

    :param tell: gets lines about the text that there is, if the language says what to train on
    Raises UserError if it exists already, if a flag is missing and nobody can be asked, or if one makes no sense.
    """
    _check_name(plan.name)
    folder = Path(plan.name)
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it or choose another name")
    try:
        base = _completed(plan)
    except EOFError:
        raise UserError("there was no answer, so nothing is written") from None
    sources = [source_for(base, each, folder) for each in plan.datasets]
    evaluation = held_out(base, plan, sources, folder)
    assert plan.recipe is not None
    filled = None
    if not sources and plan.language:
        filled = language_data(find_languages(plan.language), base)
        sources, evaluation = list(filled.sources), evaluation or filled.evaluation
    plan.language = language_code(plan.language) if plan.language else None
    text = run_toml((recipe(plan.recipe) / "run.toml").read_text(encoding="utf-8"), plan, sources, evaluation)
    if filled is not None and filled.schedule is not None:
        text = with_schedule(text, filled.schedule, plan.recipe)
    try:
        with new_folder(folder) as temporary:
            (temporary / "run.toml").write_text(text, encoding="utf-8")
            run = load_run(temporary / "run.toml")
            learned = sources or list(run.data.train)
            (temporary / COORDINATOR_FILE).write_text(template(), encoding="utf-8")
            (temporary / "README.md").write_text(_page(run, learned, plan.recipe), encoding="utf-8")
            notebooks_to_be(run, temporary / "notebooks")
    except OSError as error:
        raise UserError(f"{folder.absolute()} cannot be written ({error.strerror}); change to another folder") from None
    if filled is not None:
        for line in [*filled.lines, *_left_to_name(run)]:
            tell(line)
    return folder


def choices() -> dict[str, str]:
    """The recipes there are, each with what it is for; those of the kit first."""
    found = recipes()
    known = [name for name in PURPOSES if name in found]
    return {name: PURPOSES.get(name, "your own") for name in [*known, *(name for name in found if name not in known)]}


def next_commands(folder: Path) -> list[str]:
    """What the organizer does now, as commands; behind a # what there is to know."""
    path = folder / "run.toml"
    run = load_run(path)
    options, check = run.task.options, f"dedloc check {path}"
    commands = [f"dedloc prepare tokenizer {path}"] if isinstance(options.get("tokenizer"), str) else []
    if draws(run):
        commands = [f"dedloc prepare images {path} --shards"]
    elif commands and "init_from" in options:
        commands[0] += "    # or remove the line `tokenizer` there: then the model keeps the words that it has"
        if run.data.evaluation is not None:
            model = str(options["init_from"]).partition("@")[0]
            check += f" --compare {model}    # what words of your own are worth, and where it begins with both"
    return [*commands, check, f"dedloc launch {path}"]


def _check_name(name: str) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise UserError(
            f"'{name}' cannot be the name of a run; use lower-case letters, digits and dashes, such as our-bert"
        ) from None


def _completed(plan: Plan) -> RunConfig:
    """Ask for what is missing, if somebody sits there; returns the recipe's run.

    Who says all that has to be said is asked for nothing: a notebook's `!` looks like a terminal, and nobody answers.
    """
    if plan.recipe is None and plan.language is not None and not plan.datasets:
        plan.recipe = recommended(find_languages(plan.language))
    at_terminal, asking = sys.stdin.isatty(), plan.recipe is None
    console = Console(highlight=False)
    if plan.recipe is None:
        if not at_terminal:
            known = ", ".join(f"{name} ({purpose})" for name, purpose in choices().items())
            raise UserError(f"say which recipe with --recipe; there are: {known}")
        console.print("What is it to be?")
        for name, purpose in choices().items():
            console.print(f"  [bold]{name:12}[/bold] {escape(purpose)}")
        plan.recipe = Prompt.ask("Which one", choices=list(choices()), default="gpt", console=console)
    base = load_run(recipe(plan.recipe) / "run.toml")
    with_text = of_text(base)
    if plan.language is not None and not with_text:
        raise UserError(f"the recipe {plan.recipe} is about pictures, which have no language; leave --language out")
    if plan.start is not None and "init_from" not in base.task.options:
        raise UserError(f"the recipe {plan.recipe} begins untrained; leave --init-from out, or choose continue or chat")
    if draws(base) and plan.evaluation is not None:
        raise UserError(f"the recipe {plan.recipe} holds some captions out by itself; leave --evaluation out")
    if plan.language is not None:
        language_code(plan.language)
    lacking = not plan.datasets and not (plan.language and learns_text(base))
    if lacking and not at_terminal:
        raise UserError(f"say what to train on with --dataset {SOURCE}=WEIGHT, once for each dataset")
    if asking or lacking:
        _ask(plan, base, console)
    if plan.start:
        _check_start(plan.start)
    return base


def _check_start(name: str) -> None:
    if re.fullmatch(rf"{HUB_REPOSITORY}@[0-9a-f]{{40}}", name) is None:
        raise UserError(
            f"'{name}' names no commit of a model; give OWNER/NAME@COMMIT, the 40 digits are on its page on the Hub "
            "under Files, History"
        )


def _left_to_name(run: RunConfig) -> list[str]:
    return [
        f"{value} stands in run.toml: put the 40 digits of a commit in place of COMMIT, or another model"
        for value in run.task.options.values()
        if isinstance(value, str) and value.endswith("@COMMIT")
    ]


def _ask(plan: Plan, base: RunConfig, console: Console) -> None:
    def prompt(question: str, default: str = "", check: Callable[[str], object] = str) -> str:
        """The answer; one that makes no sense is asked for again, for the others would be lost with it."""
        while True:
            answer = Prompt.ask(question, default=default, show_default=bool(default), console=console).strip()
            try:
                if answer:
                    check(answer)
                return answer
            except UserError as error:
                console.print(escape(str(error)))

    def check_source(answer: str) -> None:
        source_for(base, answer, Path(plan.name))

    if plan.about is None:
        plan.about = prompt("What is it for? A sentence for volunteers")
    if plan.language is None and of_text(base):
        usual = str(base.task.options.get("language", DEFAULT_LANGUAGE))
        plan.language = prompt("Its language, as ISO 639 code or English name", usual, language_code)
    if plan.start is None and "init_from" in base.task.options:
        console.print(f"The recipe goes on from {public_name(str(base.task.options['init_from']))}")
        plan.start = prompt("Another one, OWNER/NAME@COMMIT; nothing to keep it", check=_check_start) or None
    known = learns_text(base) and are_known(plan.language or "")
    if not plan.datasets:
        nothing = "no answer takes what is known of the language" if known else "nothing ends the list"
        console.print(f"What to train on: {escape(SOURCE)}=WEIGHT, on the Hub or a folder; {nothing}")
    while not plan.datasets:
        while answer := prompt(f"Dataset {len(plan.datasets) + 1}", check=check_source):
            plan.datasets.append(answer)
        if known:
            break
    if plan.evaluation is None and not draws(base):
        question = f"Held-out data to measure on, {escape(SOURCE)}; nothing for the split test of a folder above"
        plan.evaluation = prompt(question, check=check_source) or None


def _page(run: RunConfig, learned: list[Source], base: str) -> str:
    """README.md for the community."""
    language = run.task.options.get("language")
    return _TEMPLATE.read_text(encoding="utf-8").format(
        name=run.name,
        about=run.about or "*Write here in a sentence or two what the model is for, and who needs it.*",
        language=f"\n**Language:** `{language}`\n" if language else "",
        steps=f"{run.optimizer.total_steps:,}",
        batch=f"{run.global_batch:,}",
        data="\n".join(f"- {public_name(source.dataset)} {source.subset or ''}".rstrip() for source in learned),
        recipe=base,
    )
