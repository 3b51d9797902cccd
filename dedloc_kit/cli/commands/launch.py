"""`dedloc launch`."""

import argparse
from pathlib import Path

from dedloc_kit.cli.options import Commands, add_peer, add_run, peer_settings, port, positive, repository, run_of, url
from dedloc_kit.errors import UserError
from dedloc_kit.run.peer import parse_coordinator


def add(commands: Commands) -> None:
    parser = commands.add_parser("launch", help="start or resume a run as its coordinator")
    add_run(parser)
    parser.add_argument("--dashboard-host", default="0.0.0.0", metavar="ADDRESS")
    parser.add_argument("--port", type=port, default=8000, help="of the live page; 0 takes a free one")
    parser.add_argument("--url", type=url, help="under which others find the live page, where a proxy stands before it")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve the live page over TLS, without a proxy")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="of that certificate")
    parser.add_argument(
        "--most-volunteers", type=positive, metavar="N", help="ask newcomers to come later while so many train"
    )
    parser.add_argument(
        "--list-volunteers",
        action="store_true",
        help="let the public invitation name where volunteers are who agree to it: through them others can join while "
        "this machine is down",
    )
    parser.add_argument("--evaluate-every", type=positive, default=10, metavar="STEPS")
    parser.add_argument("--checkpoint-every", type=positive, default=1, metavar="STEPS")
    parser.add_argument(
        "--keep-checkpoints", type=positive, default=3, metavar="N", help="the newest ones; the best one always stays"
    )
    parser.add_argument(
        "--resume", metavar="WHERE", help="start from this folder, file or OWNER/NAME[@REVISION] of the Hub"
    )
    parser.add_argument("--hub", type=repository, metavar="OWNER/NAME", help="push model and training state there")
    parser.add_argument("--private", action="store_true", help="make that repository a private one")
    parser.add_argument("--push-every", type=positive, default=50, metavar="STEPS")
    parser.add_argument(
        "--serve-every",
        type=int,
        default=50,
        metavar="STEPS",
        help="how often a language model's newest version is handed out to those who serve it; 0: never",
    )
    parser.add_argument(
        "--downloads-folder",
        type=Path,
        metavar="FOLDER",
        help="the folder of this machine that a web server shows at the run's averaging.downloads, if that is https://",
    )
    parser.add_argument(
        "--stages-memory",
        type=float,
        metavar="GB",
        help="of a run in stages: hold so much of their state in memory and the rest in the folder; default: half of "
        "what is free",
    )
    parser.add_argument(
        "--stall-minutes",
        type=positive,
        default=30,
        metavar="N",
        help="alert when no global step was done for so long",
    )
    parser.add_argument(
        "--webhook-file",
        type=Path,
        metavar="FILE",
        help="post alerts to the webhook (of Slack, Discord ...) whose secret address is in this file, or in the "
        "environment as DEDLOC_WEBHOOK",
    )
    parser.add_argument(
        "--regions",
        type=Path,
        metavar="FILE.mmdb",
        help="show on the live page how many volunteers are in which country, by this GeoIP database of countries",
    )
    add_peer(parser, folder_help="default: runs/RUN-ID; a folder of an earlier start resumes it")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.dashboard.http.sockets import Certificate
    from dedloc_kit.organizer.launch import launch
    from dedloc_kit.steering.webhook import webhook_address

    if (options.tls_cert is None) != (options.tls_key is None):
        raise UserError("a certificate and its key belong together; give both --tls-cert and --tls-key")
    certificate = Certificate(options.tls_cert, options.tls_key) if options.tls_cert else None
    webhook = webhook_address(options.webhook_file)
    run = run_of(options)
    settings = {
        **peer_settings(options),
        "folder": (options.folder or Path("runs") / run.run_id).resolve(),
        "name": "coordinator",
        "listed": options.list_volunteers,
        "evaluate_every": options.evaluate_every,
        "checkpoint_every": options.checkpoint_every,
        "keep_checkpoints": options.keep_checkpoints,
        "hub": options.hub,
        "private": options.private,
        "push_every": options.push_every,
        "serve_every": options.serve_every,
        "downloads_folder": options.downloads_folder.resolve() if options.downloads_folder else None,
        "regions": options.regions,
        "stages_memory": options.stages_memory,
    }
    return launch(
        run,
        parse_coordinator(settings),
        host=options.dashboard_host,
        port=options.port,
        url=options.url,
        certificate=certificate,
        resume=options.resume,
        most_volunteers=options.most_volunteers,
        stall_minutes=options.stall_minutes,
        webhook=webhook,
    )
