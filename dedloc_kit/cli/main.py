"""The `dedloc` command and what each of its commands calls."""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from rich.table import Table

from dedloc_kit.cli.arguments import parser
from dedloc_kit.display.console import Console, complain, log_to_terminal
from dedloc_kit.errors import UserError
from dedloc_kit.evaluation.settings import ProbeSettings, Settings
from dedloc_kit.run import Section, load_run, parse_peer
from dedloc_kit.validation import describe

SectionKind = TypeVar("SectionKind", bound=Section)


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 a bug, 2 something that the person at the keyboard can put right."""
    commands = parser()
    options = commands.parse_args(arguments)
    if "command" not in options:
        commands.print_help()
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    log_to_terminal()
    try:
        return int(_COMMANDS[options.command](options) or 0)
    except UserError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Being asked to end is the same as Ctrl-C: leave cleanly."""
    raise KeyboardInterrupt


def _machine(options: argparse.Namespace) -> dict[str, object]:
    """What the options that every peer has say, as keys of PeerConfig."""
    return {
        "device": options.device,
        "threads": options.threads,
        "host": options.host,
        "port": options.swarm_port,
        "announce_host": options.announce_host,
        "task_module": options.task_module,
        "until_step": options.until_step,
    }


def _demo(options: argparse.Namespace) -> None:
    from dedloc_kit.cli.demo import demo

    demo(
        recipe_name=options.recipe,
        volunteers=options.volunteers,
        steps=options.steps,
        report=options.report,
        browser=not options.no_browser,
    )


def _new(options: argparse.Namespace) -> None:
    from dedloc_kit.organizer.new import Plan, new, next_commands

    plan = Plan(options.name, options.recipe, options.dataset, options.evaluation, options.language, options.about)
    folder = new(plan)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"the run is in {folder}: read and change {folder / 'run.toml'} and {folder / 'README.md'}, then")
    for command in next_commands(folder):
        console.print(f"  {command}")


def _check(options: argparse.Namespace) -> None:
    from dedloc_kit.organizer.check import check
    from dedloc_kit.organizer.prediction import read_line, read_volunteers

    check(
        load_run(options.run, options.overrides),
        read_volunteers(options.volunteers),
        coordinator_line=read_line(options.line),
        offline=options.offline,
        device=options.device,
        threads=options.threads,
        microbatch=options.microbatch,
        task_module=options.task_module,
    )


def _doctor(options: argparse.Namespace) -> int:
    from dedloc_kit.cli.doctor import examine

    console = Console(highlight=False, markup=False, soft_wrap=True)
    wrong = 0
    for finding in examine(options.where, port=options.port, swarm_port=options.swarm_port):
        wrong += finding.must
        mark, style = ("wrong", "red") if finding.must else ("look", "yellow") if finding.fix else ("ok", None)
        console.print(f"{mark:7}{finding.what}", style=style)
        if finding.fix:
            console.print(f"{'':7}-> {finding.fix}")
    return 2 if wrong else 0


def _launch(options: argparse.Namespace) -> int:
    from dedloc_kit.dashboard.listening import Certificate
    from dedloc_kit.organizer.launch import launch
    from dedloc_kit.steering.webhook import webhook_address

    if (options.tls_cert is None) != (options.tls_key is None):
        raise UserError("a certificate and its key belong together; give both --tls-cert and --tls-key")
    certificate = Certificate(options.tls_cert, options.tls_key) if options.tls_cert else None
    webhook = webhook_address(options.webhook_file)
    run = load_run(options.run, options.overrides)
    settings = {
        **_machine(options),
        "folder": (options.folder or Path("runs") / run.run_id).resolve(),
        "name": "coordinator",
        "listed": options.list_volunteers,
        "evaluate_every": options.evaluate_every,
        "checkpoint_every": options.checkpoint_every,
        "keep_checkpoints": options.keep_checkpoints,
        "hub": options.hub,
        "private": options.private,
        "push_every": options.push_every,
        "regions": options.regions,
    }
    return launch(
        run,
        parse_peer(settings),
        host=options.dashboard_host,
        port=options.port,
        url=options.url,
        certificate=certificate,
        resume=options.resume,
        most_volunteers=options.most_volunteers,
        stall_minutes=options.stall_minutes,
        webhook=webhook,
    )


def _order(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import give

    Console(highlight=False, markup=False, soft_wrap=True).print(give(options.command, options.folder, options.what))


def _login(options: argparse.Namespace) -> None:
    from dedloc_kit.dashboard.login import Keys
    from dedloc_kit.steering.commands import dashboard_of

    link = Keys(options.folder).link(dashboard_of(options.folder))
    Console(highlight=False, markup=False, soft_wrap=True).print(link)


def _invite(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.access import invite

    code = invite(options.folder, options.person, options.days, options.machines)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"the personal code of {options.person}, good for {options.days} days "
        f"and {options.machines} machines at a time; it is for nobody else:"
    )
    console.print(code)


def _revoke(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.access import revoke

    revoke(options.folder, options.person)
    Console(highlight=False, markup=False).print(f"{options.person} is out within a minute, if the run is up")


def _join(options: argparse.Namespace) -> int:
    from dedloc_kit.session.display import watch
    from dedloc_kit.session.session import Session
    from dedloc_kit.steering.personal_code import personal_code

    settings = _machine(options)
    settings |= {"team": options.team, "microbatch": options.microbatch, "client_mode": options.client_mode}
    settings["listed"] = options.listed
    if options.name:
        settings["name"] = options.name
    code = personal_code(options.invitation, file=options.code_file, ask=sys.stdin.isatty())
    session = Session(options.invitation, folder=options.folder, settings=settings, code=code)
    watch(session)
    problem = session.snapshot().problem
    if problem:
        complain(problem)
    return 2 if problem else 0


def _notebook(options: argparse.Namespace) -> None:
    from dedloc_kit.notebook.generate import notebooks_for

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for path in notebooks_for(options.invitation, options.output):
        console.print(str(path))


def _dashboard(options: argparse.Namespace) -> None:
    from dedloc_kit.mirror import mirror
    from dedloc_kit.steering.personal_code import personal_code

    code = personal_code(options.invitation, file=options.code_file, ask=sys.stdin.isatty())
    mirror(options.invitation, host=options.host, port=options.port, folder=options.folder, code=code)


def _status(options: argparse.Namespace) -> None:
    from dedloc_kit.client import fetch_people, fetch_state

    state = fetch_state(options.invitation)
    console = Console(highlight=False, markup=False)
    console.print(f"{state.run_id}: {state.status}, step {state.step} of {state.total_steps}")
    console.print(f"{state.samples_total} samples in all, training loss {_number(state.loss)}")
    table = Table("volunteer", "samples", "steps")
    for person in fetch_people(options.invitation):
        table.add_row(person.name, str(person.samples), str(person.steps))
    console.print(table)


def _evaluate(options: argparse.Namespace) -> None:
    given = {key: value for key, value in vars(options).items() if key in Settings.model_fields and value is not None}
    common: dict[str, Any] = {
        "baseline": options.baseline,
        "device": options.device,
        "threads": options.threads,
        "report": options.json,
    }
    run = load_run(options.run, options.overrides) if options.run else None
    if run is not None:
        from dedloc_kit.tasks import Probeable, create_task

        task = create_task(run)
        if isinstance(task, Probeable):
            from dedloc_kit.evaluation.probe import probe

            for key in sorted(given.keys() - ProbeSettings.model_fields.keys()):
                option = f"--{key.replace('_', '-')}"
                raise UserError(
                    f"{option} is for language models; leave it out, the run's own data tells what its model knows"
                )
            probe(options.checkpoint, _valid(ProbeSettings, given), run, task, **common)
            return

    from dedloc_kit.evaluation.evaluate import evaluate

    evaluate(options.checkpoint, _valid(Settings, given), run, **common)


def _valid(kind: type[SectionKind], given: dict[str, Any]) -> SectionKind:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError(describe(error, kind)) from None


def _tokenizer(options: argparse.Namespace) -> None:
    from dedloc_kit.hub import check_login
    from dedloc_kit.organizer.prepare import prepare_tokenizer, push_tokenizer, tokenizer_folder

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    if options.push:
        check_login(options.push)  # before the minutes that training takes
    if not ((options.push or options.shards) and tokenizer_folder(run).exists()):
        prepare_tokenizer(run, options.characters)
    console.print(f"the tokenizer is in {tokenizer_folder(run)}", soft_wrap=True)
    changes = []
    if options.push:
        pushed = push_tokenizer(tokenizer_folder(run), options.push, options.private)
        console.print(f"the tokenizer is on the Hub: {pushed}", soft_wrap=True)
        changes += [f'in place of the line with tokenizer:\n\ntokenizer = "{pushed}"']
    if options.shards:
        from dedloc_kit.organizer.pretokenize import prepare_shards, push_shards, sources_toml

        folder = options.run.resolve().parent / "tokens"
        if not (options.push and folder.exists()):
            prepare_shards(run, folder)
        console.print(f"the token ids are in {folder}", soft_wrap=True)
        revision = push_shards(folder, options.push, options.private) if options.push else None
        dataset = options.push or "tokens"
        changes += [f"in place of every section [[data.train]]:\n\n{sources_toml(run, dataset, revision)}"]
    for change in changes:
        console.print(f"\nput into {options.run}, {change}", soft_wrap=True)


def _corpus(options: argparse.Namespace) -> None:
    from dedloc_kit.data.docstrings import write_corpus

    Console(highlight=False).print(f"the corpus is in {write_corpus(options.folder)}")


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.4f}"


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "demo": _demo,
    "new": _new,
    "check": _check,
    "doctor": _doctor,
    "launch": _launch,
    **dict.fromkeys(("pause", "resume", "finish", "kick", "readmit", "announce"), _order),
    "login": _login,
    "invite": _invite,
    "revoke": _revoke,
    "join": _join,
    "notebook": _notebook,
    "dashboard": _dashboard,
    "status": _status,
    "tokenizer": _tokenizer,
    "corpus": _corpus,
    "evaluate": _evaluate,
}
