"""What a volunteer who serves reads, at each moment of a session."""

from dedloc_kit.events import Joined, Loading, Served, ServerSeen, State
from dedloc_kit.session.serving import ServingState
from dedloc_kit.session.snapshot import Phase, Snapshot
from dedloc_kit.session.supervisor import Notice, Paused, Resting
from tests.session.sessions import joined


def server(begin: int, end: int, **changed: object) -> ServerSeen:
    values = {
        **{"peer": "p", "name": "ada", "team": "", "device": "CPU", "begin": begin, "end": end, "form": "int8"},
        **{"version": "v", "state": "online", "decoding": 12.0, "prompts": 90.0, "passes": 30.0},
        **{"cache_tokens": 8192, "free_tokens": 8000, "sessions": 3, "served": 1200, "client_mode": False},
    }
    return ServerSeen.model_validate({**values, **changed})


def served(mine: ServerSeen | None, *others: ServerSeen) -> Served:
    return Served(layers=4, mine=mine, servers=(mine, *others) if mine else others)


def after(*notices: Notice) -> ServingState:
    state = ServingState(run_id="toy-0", name="ada", version="v", url="http://h:8000")
    for number, notice in enumerate(notices):
        state = state.heard(notice, float(number))
    return state


def shown(*notices: Notice, later: float = 0.5) -> Snapshot:
    return after(*notices).shown(max(0, len(notices) - 1) + later)


ME: Joined = joined()
SERVING = served(server(0, 2))


def test_at_each_moment_a_sentence_says_what_happens_and_what_comes_next() -> None:
    asking = State(text="asking who serves which layers", then="those that lack servers are loaded")
    assert shown(asking).text == "Asking who serves which layers; then those that lack servers are loaded."
    assert shown(State(text="loading the layers 0:2")).text == (
        "Loading the layers 0:2; then this machine begins to answer."
    )
    assert shown(ME, SERVING).text == "Serving layers 0 to 1 of 4: users' requests are answered until you leave."
    moving = shown(ME, served(server(0, 2, state="moving")), State(text="moving from the layers 0:2 to 2:4"))
    assert moving.text == "Moving from the layers 0:2 to 2:4."
    assert shown(Resting("x", 2.0)).text == "The serving stopped and starts again by itself: x."


def test_layers_on_their_way_have_a_bar() -> None:
    loading = Loading(received_bytes=20_000_000, total_bytes=80_000_000, bytes_per_second=2e6)
    bar = shown(State(text="loading the layers 0:2"), loading).progress
    assert bar is not None
    assert (bar.fraction, bar.remaining) == (0.25, 30.0)
    assert shown(State(text="loading the layers 0:2"), loading, State(text="serving the layers 0:2")).progress is None
    waiting = shown(State(text="connecting"), later=5.0).progress
    assert waiting is not None
    assert waiting.fraction is None
    assert shown(ME, SERVING, later=100.0).progress is None, "nothing is waited for"


def test_it_is_told_what_is_served_and_which_layers_nobody_has() -> None:
    now = shown(ME, served(server(0, 2, served=100)), Resting("x", 2.0), ME, SERVING)
    told = dict(now.facts)
    assert told["holds"] == "layers 0 to 1 of 4, as int8"
    assert told["answering"] == "3 users"
    assert told["cache"] == "192 of 8,192 tokens"
    assert told["given"] == "1,300 tokens x layers"
    assert told["servers"] == "1"
    assert now.notes == (
        ("The model", "Nobody serves the layers 2 to 3: until somebody does, the model answers nobody."),
    )
    whole = shown(ME, served(server(0, 2), server(2, 4)))
    assert whole.notes == (("The model", "All 4 layers are served."),)
    assert (now.losses, now.links, now.title) == (None, (("live page", "http://h:8000"),), "toy")


def test_servers_of_other_weights_fill_no_gap() -> None:
    assert after(served(server(0, 4, version="other"))).gaps == ("0 to 3",)


def test_what_was_served_stays_in_a_pause_and_is_thanked_for() -> None:
    paused = after(ME, SERVING, Paused())
    assert paused.phase is Phase.PAUSED
    assert paused.served == 1200
    left = paused.wished("leave", 9.0).ended(None).shown(9.0)
    assert left.phase is Phase.LEFT
    assert left.notes == (("Thank you, ada", "Your machine passed 1,200 tokens x layers for others."),)
    assert after().wished("leave", 9.0).ended(None).shown(9.0).notes == ()
