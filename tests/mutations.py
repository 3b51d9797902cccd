"""Does a test notice when a defence is missing? `python -m tests.mutations [WORD...]`, by hand: it takes minutes.

Each mutation takes one defence out of a copy of this checkout and runs the tests that ought to fail then. With words
only those mutations whose names hold one of them. Ends with 1 if one was not caught, or cannot be applied any more.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "artifacts", "runs", "shared")
SECONDS = 600.0
GATE = "tests/swarm/network/test_gate.py -k believes_no_token"
SERVED = "tests/swarm/network/test_gate.py -k with_a_token_everything"


@dataclass(frozen=True)
class Mutation:
    """One defence less.

    :ivar file: in `dedloc_kit`
    :ivar old: a part of it that it holds once
    :ivar new: what stands there instead
    :ivar tests: arguments of pytest
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = (
    Mutation(
        "weights of a start that are no safetensors are read",
        "tasks/text/start.py",
        'if not any(folder.glob("model*.safetensors")):',
        "if not folder.exists():",
        "tests/tasks/text/test_start.py -k refused_in_a_line",
    ),
    Mutation(
        "a start may be another than the run's file says",
        "tasks/text/start.py",
        "(found := fingerprint(self.folder)) != self.sha256:",
        '(found := fingerprint(self.folder)) == "":',
        "tests/tasks/text/test_start.py -k another_model",
    ),
    Mutation(
        "what a run has to beat is measured with another text",
        "tasks/text/packed.py",
        "        task.held_out_texts = texts\n",
        "",
        "tests/tasks/text/test_start.py -k its_own_vocabulary",
    ),
    Mutation(
        "the coordinator does not measure what its run has to beat",
        "coordinator.py",
        "        self._evaluator.measure_start()\n",
        "",
        "tests/tasks/text/test_start.py -m slow -k from_the_swarm",
    ),
    Mutation(
        "what a run has to beat is measured at every start",
        "start_line.py",
        "known.run_id == run.run_id",
        "known.run_id != run.run_id",
        "tests/test_start_line.py",
    ),
    Mutation(
        "as good as the model that it began from counts as better",
        "ledger/reading.py",
        "FROM evaluations WHERE loss >= ?)",
        "FROM evaluations WHERE loss > ?)",
        "tests/dashboard/test_server.py -k since_when",
    ),
    Mutation(
        "a run that goes on from a model begins untrained",
        "coordinator.py",
        "            if state.step == 0:",
        "            if state.step < 0:",
        "tests/tasks/text/test_start.py -m slow -k from_the_swarm",
    ),
    Mutation(
        "a text is spelled by other tokens than the old tokenizer's",
        "tasks/text/vocabulary.py",
        "            return list(usual[number])",
        "            pass",
        "tests/tasks/text/test_vocabulary.py -k as_the_old_tokenizer_would",
    ),
    Mutation(
        "a signed claim may be of any size",
        "swarm/directory/contributions.py",
        "if contribution.samples > most:",
        "if contribution.samples < 0:",
        "tests/swarm/rounds/test_receipts.py",
    ),
    Mutation(
        "what a member claims in a round is believed",
        "swarm/averaging/service.py",
        "return possible(contribution, self._run.run_id, self._run.global_batch)",
        "return contribution",
        "tests/swarm/averaging/test_averager.py -k believable",
    ),
    Mutation(
        "a state may hold what is no number",
        "training/state.py",
        "if not is_finite(other):",
        "if other is None:",
        "tests/training/test_state.py",
    ),
    Mutation(
        "gradients are not clipped",
        "training/state.py",
        "if scale < 1.0:",
        "if scale < 0.0:",
        "tests/training/test_state.py",
    ),
    Mutation(
        "a late average may be of few samples",
        "swarm/rounds/catchup.py",
        "if sum(c.samples for c in contributions.values()) < self._run.global_batch:",
        "if not contributions:",
        "tests/swarm/rounds/test_catchup.py",
    ),
    Mutation(
        "doubtful rounds are not settled by the state",
        "swarm/rounds/optimizer.py",
        "        self._accumulator.settle(self.state.rounds)\n",
        "",
        "tests/swarm/rounds/test_catchup.py",
    ),
    Mutation(
        "doubtful rounds are not settled by receipts",
        "swarm/rounds/optimizer.py",
        "            self._accumulator.settle([receipt.round])\n",
        "",
        "tests/swarm/rounds/test_catchup.py",
    ),
    Mutation(
        "gradients may be of any age",
        "swarm/rounds/rounds.py",
        "self._accumulator.drop_older_than(max(self._state.step - staleness, self._state.rewound))",
        "0",
        "tests/swarm/rounds/test_rounds.py -k too_old",
    ),
    Mutation(
        "exact training takes old gradients",
        "swarm/rounds/rounds.py",
        "MAX_STALENESS if self._run.averaging.overlap else 0",
        "MAX_STALENESS",
        "tests/swarm/rounds/test_rounds.py -k too_old",
    ),
    Mutation(
        "a group is looked for with those who have vanished",
        "swarm/rounds/rounds.py",
        "vanished = group.members is None and",
        "vanished = False and",
        "tests/swarm/rounds/test_rounds.py -k vanished",
    ),
    Mutation(
        "what comes after the batch is full counts in it",
        "swarm/rounds/batch.py",
        "        self.fixed = True",
        "        pass",
        "tests/swarm/rounds/test_batch.py -k after_the_batch",
    ),
    Mutation(
        "a device never waits for rounds",
        "swarm/rounds/batch.py",
        "self._tally.fresh * rate >= self._run.global_batch * mine",
        "False",
        "tests/swarm/rounds/test_batch.py -k its_share",
    ),
    Mutation(
        "who claims to compute and tells of nothing is waited for",
        "swarm/rounds/batch.py",
        "if self._step() >= self._distrusted_until else 0.0",
        "",
        "tests/swarm/rounds/test_batch.py -k holds_nobody_up",
    ),
    Mutation(
        "a session's samples do not grow",
        "swarm/rounds/rounds.py",
        "session_samples=self._tally.counted + self._tally.outgoing",
        "session_samples=self._tally.outgoing",
        "tests/swarm/rounds/test_rounds.py -k grows",
    ),
    Mutation(
        "a step's loss is not weighted",
        "swarm/rounds/receipts.py",
        "sum(loss * n for loss, n in losses) / sum(n for _, n in losses)",
        "sum(loss for loss, _ in losses) / len(losses)",
        "tests/swarm/rounds/test_receipts.py",
    ),
    Mutation(
        "a forked process takes the parameters again",
        "training/state.py",
        "self.flat = shared_zeros(self.layout.size)",
        "self.flat = torch.zeros(self.layout.size)",
        "tests/training/test_state.py -k forked",
    ),
    Mutation(
        "samples of a failed device count",
        "training/gradients.py",
        "            self._lose(replica)\n        return True",
        "            pass\n        return True",
        "tests/training/test_devices.py -k without_its_samples",
    ),
    Mutation(
        "with a failed device all stops",
        "training/devices.py",
        "if len(self._devices) == 1 or not self._caller.leave_out(device.number):",
        "if True:",
        "tests/training/test_devices.py -k without_its_samples",
    ),
    Mutation(
        "the devices of a host part in local steps",
        "training/local_steps.py",
        "                theirs.copy_(mine)",
        "                pass",
        "tests/training/test_devices.py -k what_one_gives",
    ),
    Mutation(
        "the devices of a host are never in step",
        "volunteer.py",
        'in_step=not run.averaging.overlap or run.averaging.mode == "local-steps",',
        "in_step=False,",
        "tests/swarm/test_equivalence.py -k three_uneven",
    ),
    Mutation(
        "ALBERT is evaluated on what it trains on",
        "tasks/text/common.py",
        "in_order(source, self._read, warn=_logger.warning)",
        "in_order(self.run.data.train[0], self._read, warn=_logger.warning)",
        "tests/tasks/test_albert.py -k trains_on",
    ),
    Mutation(
        "packed documents see each other",
        "tasks/text/architecture.py",
        "mask = (document[:, :, None] == document[:, None, :])[:, None]",
        "mask = (document[:, :, None] == document[:, :, None])[:, None].expand(-1, -1, -1, document.shape[1])",
        "tests/tasks/text/test_architectures.py -k alone",
    ),
    Mutation(
        "a decoder keeps a cache, and with it sees all documents",
        "tasks/text/architecture.py",
        "position_ids=positions, use_cache=False)",
        "position_ids=positions, use_cache=True)",
        "tests/tasks/text/test_architectures.py -k alone",
    ),
    Mutation(
        "an architecture whose documents see each other is trained",
        "tasks/text/architecture.py",
        "if _differ(plain[:, 4:], other[:, 4:], _LEAK):",
        "if False:",
        "tests/tasks/text/test_architectures.py -k refused",
    ),
    Mutation(
        "the scores of all tokens stand in memory at once",
        "tasks/text/output_loss.py",
        "return max(1, _SCORES_AT_ONCE // vocabulary)",
        "return _SCORES_AT_ONCE",
        "tests/tasks/text/test_output_loss.py -k 128000",
    ),
    Mutation(
        "the bytes of a document that is measured in part count in full",
        "tasks/text/packed.py",
        "size += len(text.encode()) * part",
        "size += len(text.encode())",
        "tests/tasks/test_causal.py -k hardly_depend",
    ),
    Mutation(
        "a tokenizer that keeps spaces loses some",
        "data/tokens.py",
        '_SINGLE_SPACE.split(text) if _SEVERAL_SPACES.search(text) else text.split(" ")',
        'text.split(" ")',
        "tests/data/test_tokens.py -k without_a_language",
    ),
    Mutation(
        "SwAV balances once",
        "tasks/swav.py",
        "self.options.epsilon, self.options.sinkhorn_iterations)",
        "self.options.epsilon, 1)",
        "tests/tasks/test_swav.py -k balanced",
    ),
    Mutation(
        "what is pushed to viewers lacks the announcement",
        "dashboard/server.py",
        'state = (await asyncio.to_thread(self._state)).model_dump(mode="json")',
        'state = (await asyncio.to_thread(self._state)).model_dump(mode="json", exclude={"announcement"})',
        "tests/dashboard/test_server.py -k gets_the_state_first",
    ),
    Mutation(
        "what is pushed to viewers lacks the speed",
        "dashboard/server.py",
        'state = (await asyncio.to_thread(self._state)).model_dump(mode="json")',
        'state = (await asyncio.to_thread(self._state)).model_dump(mode="json", exclude={"samples_per_second"})',
        "tests/dashboard/test_server.py -k gets_the_state_first",
    ),
    Mutation(
        "the rows of a lost file are counted as well",
        "data/losses.py",
        "                if found:\n                    self._count(",
        "                if bad:\n                    self._count(",
        "tests/data/test_formats.py -k lost_as_one",
    ),
    Mutation(
        "a question that is cut off is not asked again",
        "data/patience.py",
        "for pause in PAUSES if request.method in _SAFE else ():",
        "for pause in ():",
        "tests/data/test_patience.py",
    ),
    Mutation(
        "a peer holds memory for every version that it began to download",
        "swarm/transfer/places.py",
        'if self.version not in ("", version):',
        "if False:",
        "tests/swarm/hostile/test_lengths.py -k stalled",
    ),
    Mutation(
        "workers import from the user's folder",
        "machine/isolation.py",
        '"PYTHONSAFEPATH": "1"',
        '"PYTHONSAFEPATH": ""',
        "tests/machine/test_isolation.py -k ledger",
    ),
    Mutation(
        "an empty part of PYTHONPATH is the user's folder",
        "machine/isolation.py",
        "if part)",
        "if True)",
        "tests/machine/test_isolation.py -k purpose",
    ),
    Mutation(
        "what lies beside a task module hides libraries",
        "tasks/__init__.py",
        "sys.path.append(here)",
        "sys.path.insert(0, here)",
        "tests/machine/test_isolation.py -k task_module",
    ),
    Mutation(
        "anybody says where the page is",
        "dashboard/http/place.py",
        " and client[0] in self._behind.trusted_hosts",
        "",
        "tests/dashboard/test_tls.py -k configured",
    ),
    Mutation(
        "a proxy's path is left out",
        "dashboard/http/place.py",
        "request.scope.get('prefix', '')",
        "''",
        "tests/dashboard/test_tls.py -k configured",
    ),
    Mutation(
        "one reason for ever",
        "session/supervisor.py",
        "if repeats >= MAX_REPEATS:",
        "if repeats < 0:",
        "tests/session/test_session.py -k one_reason",
    ),
    Mutation(
        "why a peer had to start again may hold control characters",
        "records.py",
        "Reason = Annotated[str, Field(max_length=MAX_REASON, pattern=PLAIN_TEXT)]",
        "Reason = Annotated[str, Field(max_length=MAX_REASON)]",
        "tests/test_records.py -k start_again",
    ),
    Mutation(
        "a reason tells the organizer of paths",
        "volunteer.py",
        "for_organizer(stopped, MAX_REASON)",
        "stopped",
        "tests/session/test_session.py -k goes_on_by_itself",
    ),
    Mutation(
        "a peer's own record hides its twin's",
        "swarm/directory/tracker.py",
        "if not news:  # before this",
        "if False:  # before this",
        "tests/swarm/directory/test_twin.py -k before_each_look",
    ),
    Mutation(
        "what a killed process left is a twin",
        "swarm/directory/twin.py",
        "self._spoke > MAX_LEFT",
        "self._spoke > 0",
        "tests/swarm/directory/test_twin.py -k 'goes_on_speaking or after_a_crash'",
    ),
    Mutation(
        "both of two twins give way",
        "swarm/directory/twin.py",
        "return (self.since, self.session) > (other.since, other.session)",
        "return self.session != other.session",
        "tests/swarm/directory/test_twin.py -k one_answer",
    ),
    Mutation(
        "a twin does not wait",
        "volunteer.py",
        "        _await_twin(me, stop, emit)\n",
        "",
        "tests/swarm/directory/test_twin.py -k second_machine_waits",
    ),
    Mutation(
        "who waits for its twin does not tell it",
        "swarm/directory/tracker.py",
        "                    self._tell_twin()\n",
        "                    pass\n",
        "tests/swarm/directory/test_twin.py -k second_machine_waits",
    ),
    Mutation(
        "a twin that has not heard the first words is never told",
        "swarm/directory/tracker.py",
        "looks <= ECHOES or looks.bit_count() == 1",
        "looks <= ECHOES",
        "tests/swarm/directory/test_twin.py -k ever_more_rarely",
    ),
    Mutation(
        "a ledger may be cut off",
        "ledger/ledger.py",
        "size >= self._size and ",
        "",
        "tests/test_lasting.py",
    ),
    Mutation(
        "a ledger may be older than it must be",
        "ledger/rescuing.py",
        "there >= held",
        "there >= 0",
        "tests/test_lasting.py",
    ),
    Mutation(
        "what came after the ledger's copy is not recorded again",
        "lasting.py",
        "            for write in self._since:\n                write()\n",
        "",
        "tests/test_lasting.py",
    ),
    Mutation(
        "forgotten steps come back from the ledger's copy",
        "lasting.py",
        "if step.step < self._least:",
        "if False:",
        "tests/test_lasting.py",
    ),
    Mutation(
        "a checkpoint may be cut off",
        "lasting.py",
        " and path.stat().st_size == size",
        "",
        "tests/test_lasting.py",
    ),
    Mutation(
        "a damaged key is held as the key",
        "lasting.py",
        "if not held if path.name == IDENTITY_FILE else _is_json(there):",
        "if True:",
        "tests/test_lasting.py",
    ),
    Mutation(
        "a coordinator goes on with another key",
        "coordinator.py",
        "    check_key(peer.folder)\n",
        "",
        "tests/test_coordinator.py -k another_key",
    ),
    Mutation(
        "a token may be another peer's",
        "swarm/network/gate.py",
        "if read.peer != peer:",
        "if read.peer == 'nobody':",
        GATE,
    ),
    Mutation(
        "anybody signs tokens",
        "swarm/network/gate.py",
        "if (author, read.run_id) != (self.organizer, self.run_id):",
        "if read.run_id != self.run_id:",
        GATE,
    ),
    Mutation(
        "tokens of other runs count",
        "swarm/network/gate.py",
        "if (author, read.run_id) != (self.organizer, self.run_id):",
        "if author != self.organizer:",
        GATE,
    ),
    Mutation("tokens last for ever", "swarm/network/gate.py", "if self.expired(read):", "if not read.expires:", GATE),
    Mutation(
        "strangers' streams are served",
        "swarm/network/gate.py",
        "if not self.gate.admits(peer):\n                writer.close()",
        "if not peer:\n                writer.close()",
        SERVED,
    ),
    Mutation(
        "strangers' calls are served",
        "swarm/network/gate.py",
        "self.gate.check(context.remote_id)\n            return await handler(request, context)",
        "return await handler(request, context)",
        SERVED,
    ),
    Mutation(
        "who was sent away is still admitted",
        "swarm/network/gate.py",
        "if self.notice.refuses(peer):\n            return False",
        "",
        "tests/swarm/network/test_gate.py -k 'refused and not Hub'",
    ),
    Mutation(
        "a peer claims any number of samples",
        "swarm/directory/tracker.py",
        "if progress.samples > MAX_BATCHES * self._global_batch:",
        "if progress.samples < 0:",
        "tests/swarm/directory/test_tracker.py",
    ),
    Mutation(
        "a code may be forged",
        "access/codes.py",
        "if not hmac.compare_digest(",
        "if not code and not hmac.compare_digest(",
        "tests/access/test_office.py",
    ),
    Mutation(
        "a code is shown to any coordinator",
        "access/codes.py",
        "if not self.is_for(run, organizer):\n            raise explained",
        "if not self.run:\n            raise explained",
        "tests/access/test_office.py",
    ),
    Mutation(
        "an invitation's configuration may be edited",
        "records.py",
        "if run.run_id != self.run_id:",
        "if not run.run_id:",
        "tests/test_records.py",
    ),
    Mutation(
        "names may hold control characters",
        "records.py",
        "PeerText = Annotated[str, Field(max_length=64, pattern=PLAIN_TEXT)]",
        "PeerText = Annotated[str, Field(max_length=64)]",
        "tests/test_records.py",
    ),
    Mutation(
        "a body may be of any length",
        "dashboard/http/limits.py",
        "> MAX_SENT:",
        "> 10**12:",
        "tests/dashboard/http/test_limits.py",
    ),
    Mutation(
        "an owner may be spelled in many ways",
        "swarm/network/identity.py",
        "if subkey != _subkey(found):",
        "if False:",
        "tests/swarm/network/test_identity.py",
    ),
    Mutation(
        "a signature may be followed by anything",
        "swarm/network/identity.py",
        "if not signature or rest != _canonical(signature) + _END:",
        "if not signature:",
        "tests/swarm/network/test_identity.py",
    ),
    Mutation(
        "records may stay for years",
        "swarm/network/keeper.py",
        "if not (isinstance(record.expiration_time, float) and record.expiration_time <= longest):",
        "if not isinstance(record.expiration_time, float):",
        "tests/swarm/network/test_keeper.py",
    ),
    Mutation(
        "anybody's notice is kept",
        "swarm/network/keeper.py",
        "if kind.organizers and peer != self.organizer:",
        "if False:",
        "tests/swarm/network/test_keeper.py",
    ),
    Mutation(
        "any number of records is kept",
        "swarm/network/keeper.py",
        "if before is None and len(records) >= self._most and author(subkey) != self._organizer:",
        "if False:",
        "tests/swarm/network/test_keeper.py",
    ),
    Mutation(
        "an answer of a node is believed as it is",
        "swarm/network/keeper.py",
        "key: (_dictionary(answer.value.data) if answer is not None else None, _true(nearest))",
        "key: (answer, nearest)",
        "tests/swarm/hostile/test_directory.py -k hands_out_garbage",
    ),
    Mutation(
        "half of the samples is a proof",
        "swarm/directory/belief.py",
        "return 2 * sum(map(self.weight, peers)) >",
        "return 2 * sum(map(self.weight, peers)) >=",
        "tests/swarm/directory/test_belief.py",
    ),
    Mutation(
        "any step may be claimed",
        "swarm/directory/belief.py",
        "mine.step <= progress.step <= limit}",
        "mine.step <= progress.step}",
        "tests/swarm/directory/test_belief.py",
    ),
    Mutation(
        "the signs of a sketch are known",
        "training/sketch.py",
        '_signs(seed + b"inner"',
        '_signs(b"inner"',
        "tests/training/test_sketch.py",
    ),
    Mutation(
        "one gives to step 0",
        "swarm/directory/contributions.py",
        "if contribution.step < 1:",
        "if contribution.step < 0:",
        "tests/swarm/hostile/test_state.py -k step_0",
    ),
    Mutation(
        "a stranger fills a gap of the ledger",
        "ledger/ledger.py",
        " and peer in met:",
        ":",
        "tests/test_ledger.py",
    ),
    Mutation(
        "the organizer gives up its own state of a step for that of others",
        "swarm/directory/belief.py",
        "        if self._me != self.organizer:  # which",
        "        if True:  # which",
        "tests/swarm/directory/test_belief.py -k keeps_its_own",
    ),
    Mutation(
        "steps that others took in place of ours are not told",
        "swarm/rounds/catchup.py",
        "replaced = receipt.round != known.get(receipt.step, receipt.round)",
        "replaced = False",
        "tests/swarm/rounds/test_catchup.py -k in_place_of_ours",
    ),
    Mutation(
        "one witness condemns a state",
        "swarm/rounds/witnesses.py",
        "elif self._tracker.proves(unlike):",
        "elif unlike:",
        "tests/swarm/rounds/test_witnesses.py",
    ),
    Mutation(
        "a message may announce any length",
        "swarm/network/service.py",
        "            if length > limit:",
        "            if False:",
        "tests/swarm/hostile/test_lengths.py -k 'terabyte and not server'",
    ),
    Mutation(
        "a message need not end",
        "swarm/network/service.py",
        "        async with asyncio.timeout(RECEIVE_SECONDS):\n            return",
        "        if True:\n            return",
        "tests/swarm/hostile/test_lengths.py -k does_not_end",
    ),
    Mutation(
        "a leader may name a member twice",
        "swarm/averaging/group.py",
        "if len({member.peer for member in members}) < len(members):",
        "if False:",
        "tests/swarm/hostile/test_lengths.py -k leader_is_not_believed",
    ),
    Mutation(
        "an average is taken whatever its parts are",
        "swarm/transfer/contents.py",
        "            self.check_part(part)",
        "            pass",
        "tests/swarm/transfer/test_service.py -k missed_average",
    ),
    Mutation(
        "a call may bring any length",
        "swarm/network/bounds.py",
        "if len(data) > self._most:",
        "if len(data) > 2**40:",
        "tests/swarm/hostile/test_lengths.py -k 'longer_than_such'",
    ),
    Mutation(
        "a download ends the peer's own",
        "swarm/transfer/places.py",
        'if self.version not in ("", version):',
        "if self.version != version:",
        "tests/swarm/transfer/test_places.py",
    ),
    Mutation(
        "messages within messages count anew",
        "swarm/network/unpacking.py",
        "left = _count(",
        "_count(",
        "tests/swarm/network/test_unpacking.py",
    ),
    Mutation(
        "a page's answer is read to its end",
        "machine/answers.py",
        "answer.raw.read(most + 1,",
        "answer.raw.read(",
        "tests/swarm/hostile/test_lengths.py -k answers_without_end",
    ),
    Mutation(
        "a ledger's copy takes any memory",
        "ledger/filling.py",
        "resource.setrlimit(resource.RLIMIT_DATA, (most, most))",
        "pass",
        "tests/test_ledger_copying.py -k gets_no_memory",
    ),
    Mutation(
        "who waits for nothing keeps its place",
        "dashboard/http/connections.py",
        "first.cut()",
        "pass",
        "tests/swarm/hostile/test_page.py -k half_sent",
    ),
    Mutation(
        "newcomers to the page lose their places",
        "dashboard/http/shares.py",
        "fullest = max(self._held, key=lambda known: len(self._held[known]))",
        "fullest = address",
        "tests/dashboard/http/test_shares.py",
    ),
    Mutation(
        "the entrance has no budget of its own",
        "dashboard/http/limits.py",
        "return ENTRANCE if path.startswith(entrance) else READING",
        "return READING",
        "tests/dashboard/http/test_limits.py",
    ),
    Mutation(
        "the terminal gets any character",
        "display/console.py",
        "segment if segment.control else segment._replace(text=printable(segment.text))",
        "segment",
        "tests/display/test_console.py",
    ),
    Mutation(
        "the invitation names every volunteer",
        "organizer/launch.py",
        "(*self.addresses, *self._listed)",
        '(*self.addresses, *self._listed, *__import__("dedloc_kit.memory").memory.recall(self._peer.folder, self.run.run_id).peers)',  # noqa: E501
        "tests/organizer/test_launch.py",
    ),
    Mutation(
        "an invitation needs no signature",
        "records.py",
        "if not has_signed(read.organizer, read.key, read._signed_part(), read.signature):",
        "if False:",
        "tests/test_records.py tests/test_client.py",
    ),
    Mutation(
        "the organizer may change",
        "machine/home.py",
        "if known != organizer:",
        "if False:",
        "tests/test_client.py -k organizer",
    ),
    Mutation(
        "the wheel is not pinned",
        "distribution.py",
        'return f"{self.name}#sha256={hashlib.sha256(self.content).hexdigest()}"',
        "return self.name",
        "tests/test_distribution.py -k man_in_the_middle",
    ),
    Mutation(
        "a stranger asks without end",
        "swarm/membership/admission.py",
        "_take(self._strangers, peer)",
        "pass",
        "tests/swarm/hostile/test_strangers.py -k asks_without_end",
    ),
    Mutation(
        "a code is for any number of machines",
        "access/office.py",
        "if len(others) >= admitted.machines:",
        "if len(others) >= 10**9:",
        "tests/access/test_office.py",
    ),
    Mutation(
        "a peer is looked for wherever it says",
        "swarm/network/gate.py",
        "return tuple(address for address, place in places.items() if place == (reached.host, reached.port))",
        "return tuple(places)",
        "tests/swarm/hostile/test_strangers.py -k where_the_organizer",
    ),
    Mutation(
        "a port is dialled as often as it is named",
        "machine/dials.py",
        "or place in self._dialled\n",
        "\n",
        "tests/machine/test_dials.py",
    ),
    Mutation(
        "the organizer's word does not count while rounds with it fail",
        "swarm/directory/tracker.py",
        "self.suspicion.backed_off() - {self.belief.organizer}",
        "self.suspicion.backed_off()",
        "tests/swarm/directory/test_tracker.py -k its_word_counts",
    ),
    Mutation(
        "looks over a line that was down make a peer alone",
        "swarm/directory/tracker.py",
        "            self._lonely = 0.0\n            return False\n",
        "            return False\n",
        "tests/swarm/directory/test_tracker.py -k line_that_was_down",
    ),
    Mutation(
        "anybody orders that the run goes back",
        "swarm/rounds/receipts.py",
        "if author != organizer:",
        "if False:",
        "tests/swarm/hostile/test_rewind.py -k anybody",
    ),
    Mutation(
        "an order to go back holds for another step",
        "swarm/rounds/receipts.py",
        "if (rewind.run_id, rewind.step, rewind.round) != (run_id, receipt.step, receipt.round) or receipt.signed:",
        "if receipt.signed:",
        "tests/swarm/hostile/test_rewind.py -k anywhere_else",
    ),
    Mutation(
        "anybody orders that the rate falls",
        "swarm/rounds/receipts.py",
        "if (author, order.run_id, order.rewound) == (organizer, run_id, rewound) else 0",
        "if (order.run_id, order.rewound) == (run_id, rewound) else 0",
        "tests/swarm/hostile/test_decay.py -k anybody",
    ),
    Mutation(
        "an order to decay holds in another run or after a rewind",
        "swarm/rounds/receipts.py",
        "if (author, order.run_id, order.rewound) == (organizer, run_id, rewound) else 0",
        "if author == organizer else 0",
        "tests/swarm/hostile/test_decay.py -k anywhere_else",
    ),
    Mutation(
        "a member's order to decay moves the others",
        "swarm/rounds/receipts.py",
        "if (author, order.run_id, order.rewound) == (organizer, run_id, rewound) else 0",
        "if (order.run_id, order.rewound) == (run_id, rewound) else 0",
        "tests/swarm/hostile/test_decay.py -k moves_nobody",
    ),
    Mutation(
        "nobody brings the organizer's order to a round",
        "swarm/rounds/rounds.py",
        'decay_order="" if self._state.decay else self._decay_order',
        'decay_order=""',
        "tests/swarm/rounds/test_rounds.py -k brought",
    ),
    Mutation(
        "who missed a step misses the order in it",
        "swarm/rounds/catchup.py",
        "self._state.apply(average, receipt, decay)",
        "self._state.apply(average, receipt, 0)",
        "tests/swarm/rounds/test_catchup.py -k ordered",
    ),
    Mutation(
        "a decay is ordered anew with every step of it",
        "training/state.py",
        "falling = self.decay or self._begun(decay, receipt.step)",
        "falling = self._begun(decay, receipt.step) or self.decay",
        "tests/training/test_decaying.py -k second_order",
    ),
    Mutation(
        "newcomers do not know that the rate falls",
        "training/state.py",
        "            self.decay = decay\n",
        "",
        "tests/training/test_decaying.py -k takes_over",
    ),
    Mutation(
        "a run does not end with its decay",
        "swarm/rounds/optimizer.py",
        "self._last_step if decay is None else min(self._last_step, decay.end)",
        "self._last_step",
        "tests/test_decay.py -k plain_loop",
    ),
    Mutation(
        "the coordinator does not pass the order on",
        "coordinator.py",
        'optimizer.decay_order(orders.decay.steps) if orders.decay else ""',
        '""',
        "tests/test_decay.py -k plain_loop",
    ),
    Mutation(
        "the last mixture is not read",
        "tasks/mixtures.py",
        "if self._falls():",
        "if False:",
        "tests/tasks/test_mixtures.py",
    ),
    Mutation(
        "embeddings are turned as hidden matrices are",
        "training/muon.py",
        "if param.ndim == 2 and param.shape not in tables]",
        "if param.ndim == 2]",
        "tests/training/test_muon.py",
    ),
    Mutation(
        "a key that came later renames every run",
        "run.py",
        "                values.pop(name, None)\n",
        "                pass\n",
        "tests/test_run.py -k fingerprint",
    ),
    Mutation(
        "a lost checkpoint is taken by itself",
        "training/checkpoint.py",
        "if _step_of(path) in self.ruined:",
        "if False:",
        "tests/training/test_ruined.py -k newest",
    ),
    Mutation(
        "--resume takes a lost checkpoint",
        "training/checkpoint.py",
        "if _step_of(path) in Ruined(path.parent):",
        "if False:",
        "tests/training/test_ruined.py -k resume",
    ),
    Mutation(
        "the factor of the rate is not applied",
        "training/state.py",
        "self.rate * learning_rate(",
        "learning_rate(",
        "tests/training/test_going_back.py -k rate",
    ),
    Mutation(
        "what was computed before a rewind counts after it",
        "training/state.py",
        "                forget()\n",
        "                pass\n",
        "tests/training/test_going_back.py -k computes",
    ),
    Mutation(
        "what a process beside the training warns of is lost",
        "machine/logs.py",
        "self._others.put(record.getMessage())",
        "pass",
        "tests/machine/test_logs.py",
    ),
    Mutation(
        "warnings stay in the log",
        "worker.py",
        "    Warnings(lambda text: emit(Warned(text=text)))\n",
        "",
        "tests/test_coordinator.py -k full_disk",
    ),
    Mutation(
        "a piece of a hidden word sees the pieces after it",
        "evaluation/likelihood.py",
        "Query(owner, list(hidden), slice",
        "Query(owner, [*ids[:position], mask, *ids[position + 1 :]], slice",
        "tests/evaluation/test_likelihood.py -k pieces",
    ),
    Mutation(
        "bits are counted by characters instead of bytes",
        "evaluation/measures.py",
        "self.bytes += len(text.encode())",
        "self.bytes += len(text)",
        "tests/evaluation/test_side_by_side.py -k raw_text",
    ),
    Mutation(
        "a sentence that reads the same to a model as the wrong one is right",
        "evaluation/measures.py",
        "wrong - good > _NOISE",
        "wrong - good > -_NOISE",
        "tests/evaluation/test_side_by_side.py -k likelier",
    ),
    Mutation(
        "a demo takes a recipe in its full size",
        "organizer/prepare.py",
        "small if small.is_file() else None",
        "None",
        "tests/organizer/test_prepare.py -k demo",
    ),
    Mutation(
        "a published model is loaded from a pickle",
        "evaluation/pretrained.py",
        "use_safetensors=True",
        "use_safetensors=False",
        "tests/evaluation/test_side_by_side.py -k one_line",
    ),
    Mutation(
        "what volunteers claim of a diverged training ruins a checkpoint",
        "evaluator.py",
        "else not far_above(*measured)",
        "else not self._divergence.problem",
        "tests/test_evaluator.py",
    ),
    Mutation(
        "a diverged run without held-out data is not measured",
        "evaluator.py",
        "or not (held_out or suspected):",
        "or not held_out:",
        "tests/test_evaluator.py",
    ),
    Mutation(
        "a state is measured again and again",
        "evaluator.py",
        "self._position == self._state.position",
        "False",
        "tests/test_evaluator.py",
    ),
    Mutation(
        "a measurement that is not a number leaves the checkpoint as it is",
        "evaluator.py",
        "sound = math.isfinite(measured.loss) if",
        "sound = True if",
        "tests/test_evaluator.py",
    ),
    Mutation(
        "a diverged training is lost from where it was noticed on",
        "steering/divergence.py",
        'return min(step, max(1, self._row - 1)) if self._above["training"] else step',
        "return step",
        "tests/steering/test_divergence.py -k begins",
    ),
    Mutation(
        "of lost steps nothing is known once the folder is gone",
        "lasting.py",
        '    f"checkpoints/{RUINED_FILE}",\n',
        "",
        "tests/test_lasting.py -k diverged",
    ),
    Mutation(
        "two coordinators go on with one key",
        "coordinator.py",
        "        if twin.second:\n",
        "        if False:\n",
        "tests/test_coordinator.py -k one_key",
    ),
    Mutation(
        "a coordinator does not tell of its twin",
        "coordinator.py",
        "if twin.certain and not self._twin_told:",
        "if False:",
        "tests/test_coordinator.py -k one_key",
    ),
    Mutation(
        "a coordinator that ends because of its twin does not tell it",
        "coordinator.py",
        "            self._me.optimizer.tracker.give_way(stop)\n",
        "",
        "tests/test_coordinator.py -k one_key",
    ),
    Mutation(
        "who gives way signs its twin off",
        "swarm/directory/tracker.py",
        " and not self.twin.second:",
        ":",
        "tests/swarm/directory/test_twin.py -k sign_it_off",
    ),
    Mutation(
        "a viewer lets the run go back",
        "dashboard/routes/organizer.py",
        "        if not keys.knows(cookie):\n",
        "        if False:\n",
        "tests/dashboard/routes/test_organizer.py -k nobody_else",
    ),
    Mutation(
        "what a member's parts lose is never made good",
        "swarm/averaging/service.py",
        "            self._coding.sent.commit()\n",
        "",
        "tests/swarm/averaging/test_service.py",
    ),
    Mutation(
        "what a reducer's averages lose is never made good",
        "swarm/averaging/service.py",
        "            self._coding.averaged.commit()\n",
        "",
        "tests/swarm/averaging/test_service.py",
    ),
    Mutation(
        "of bad rows only those are counted that are told",
        "data/losses.py",
        "        self.bad_rows = total = before + more\n",
        "        total = before + more\n        self.bad_rows = max(before, 1)\n",
        "tests/data/test_formats.py -k between_two",
    ),
    Mutation(
        "a broken picture is not told",
        "data/pictures/images.py",
        "                    item.bad(str(error))\n",
        "",
        "tests/data/pictures/test_images.py -k broken",
    ),
    Mutation(
        "a broken picture counts in each pass",
        "data/losses.py",
        "            proven.add(number)\n",
        "",
        "tests/data/pictures/test_images.py -k once_in_all",
    ),
    Mutation(
        "a picture does not know whose loss it is",
        "data/losses.py",
        "                item.bad = partial(self._prove, shard, item.number)\n",
        "                pass\n",
        "tests/tasks/test_swav.py -k bad_row",
    ),
)


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="dedloc-mutations-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, copy, ignore=LEFT_OUT)
        for mutation in chosen:
            verdict = judge(mutation, copy)
            missed += verdict != "caught"
            print(f"{verdict:28}{mutation.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} were caught")
    return 1 if missed else 0


def judge(mutation: Mutation, copy: Path) -> str:
    """What becomes of one mutation; the copy is as before afterwards."""
    path = copy / "dedloc_kit" / mutation.file
    whole = path.read_text() if path.exists() else ""
    if whole.count(mutation.old) != 1:
        return "NO SUCH PLACE"
    if unmutated(mutation.tests, copy) != 0:
        return "TESTS FAIL WITHOUT IT"
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        return {0: "NOT CAUGHT", 1: "caught"}.get(failed := run(mutation.tests, copy), f"PYTEST ENDED WITH {failed}")
    finally:
        path.write_text(whole)


@cache
def unmutated(tests: str, copy: Path) -> int:
    """pytest's exit code where nothing is mutated."""
    return run(tests, copy)


def run(tests: str, copy: Path) -> int:
    """pytest's exit code: 0 if all pass, 1 if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    return subprocess.run(
        [*command, *shlex.split(tests)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,  # nobody is there whom a test could ask
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
