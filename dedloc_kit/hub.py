"""The Hugging Face Hub: where a run is published and from where it can be resumed.

The token is the one that huggingface_hub finds by itself (`hf auth login` or `HF_TOKEN`); it passes through no code of
ours.
"""

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.config.places import ON_HUB, published
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY
from dedloc_kit.errors import UserError
from dedloc_kit.fetching import bound_silence, fetched
from dedloc_kit.machine.account import leave_no_token
from dedloc_kit.machine.hidden_characters import check_pasted, why_no_token
from dedloc_kit.machine.paths import exists, expanded
from dedloc_kit.records.contributors import CONTRIBUTORS_FILE, LEDGER_FOLDER, MAX_LEDGER_BYTES
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.state import STATE_FILE

RUN_FILE = "run.json"
CARD_FILE = "README.md"
_MAX_INVITATION_BYTES = 1_000_000
_LEDGER_TABLE, _MAX_TABLES = rf"{LEDGER_FOLDER}/[a-z_]{{1,40}}\.parquet", 32
_OF_A_NEW_REPOSITORY = {
    *(".gitattributes", "README.md", "LICENSE", "tokenizer.json", "tokenizer_config.json"),
    *("picture_model.json", "picture_model.safetensors"),
}
"""Files that may be there before the run: `dedloc prepare` pushes first what it needs."""
_FOR_NOW = {408, 409, 412, 425, 429}
"""Answers of the Hub to a request that may succeed when it is made again."""
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class HubUnavailable(Exception):
    """The Hub does not do what it was asked for now; it may later."""


class Repository:
    """One model repository on the Hub that belongs to one run."""

    def __init__(self, name: str, *, private: bool = False) -> None:
        """:param name: `OWNER/NAME`"""
        self.name = name
        self._private = private

    def claim(self, run: RunConfig) -> None:
        """Make the repository if there is none, and write the run's configuration to it as proof that we may.

        Raises UserError with the fix if there is no token, it may not write there, or the repository holds something
        else; HubUnavailable if the Hub does not answer.
        """
        from huggingface_hub import CommitOperationAdd, HfApi

        check_login(self.name)
        api = HfApi()
        with asking(f"write to {self.name}"):
            # Without a wish the Hub's own default for this owner holds.
            api.create_repo(self.name, private=self._private or None, exist_ok=True)
            info = api.model_info(self.name)
            files = {file.rfilename for file in info.siblings or ()}
            owner = None
            if RUN_FILE in files:
                owner = _run_id(_file(self.name, RUN_FILE, info.sha))
        if self._private and not info.private:
            raise UserError(f"{self.name} is public; make it private on its page, or leave out --private")
        if owner != run.run_id and (owner is not None or files - _OF_A_NEW_REPOSITORY):
            holder = f"belongs to the run {owner}" if owner else "holds files of something else"
            raise UserError(f"{self.name} {holder}; choose another repository for {run.run_id} with --hub")
        with asking(f"write to {self.name}"):
            content = described(run).encode()
            api.create_commit(
                self.name, [CommitOperationAdd(RUN_FILE, content)], commit_message=f"Begin the run {run.run_id}"
            )

    def metadata(self) -> dict[str, Any]:
        """What the head of the repository's README.md says now; nothing if there is none. HubUnavailable."""
        from huggingface_hub import HfApi

        with asking(f"read {self.name}"):
            if not HfApi().file_exists(self.name, CARD_FILE):
                return {}
            return card_metadata(_file(self.name, CARD_FILE))

    def push(self, folder: Path, message: str) -> str:
        """Push the folder in one commit, which is there whole or not at all; returns the commit's address.

        Raises UserError if the token may not do that, HubUnavailable if the Hub fails.
        """
        from huggingface_hub import HfApi

        with asking(f"write to {self.name}"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="It seems that you are about to commit a data file")  # the ledger
            return str(HfApi().upload_folder(repo_id=self.name, folder_path=folder, commit_message=message).commit_url)


def card_metadata(card: Path) -> dict[str, Any]:
    """What the head of a model card says; nothing if there is none."""
    from huggingface_hub.repocard import metadata_load

    try:
        return metadata_load(card) or {}
    except Exception:  # YAML has exceptions of its own, and there is nothing to keep
        return {}


def repository_and_revision(name: str) -> tuple[str, str | None] | None:
    """The parts of `OWNER/NAME` or `OWNER/NAME@REVISION`; none if it is neither."""
    match = re.fullmatch(ON_HUB, name)
    return (match[1], match[2]) if match else None


def check_login(repository: str) -> None:
    """Raise UserError unless `OWNER/NAME` can be a repository and this machine has a token of the Hub."""
    from huggingface_hub import get_token

    check_pasted(f"the name {repository}", repository)
    if not re.fullmatch(HUB_REPOSITORY, repository):
        raise UserError(f"{repository} is no name of a repository on the Hub; use OWNER/NAME")
    if why := why_no_token(get_token() or ""):
        raise UserError(
            f"the Hub token of this machine cannot be one, so {repository} cannot be written: {why}; copy it again, "
            "whole, from huggingface.co/settings/tokens"
        )
    if get_token() is None:
        raise UserError(f"nobody is logged in to the Hub, so {repository} cannot be written; {_LOG_IN}")


def upload(
    folder: Path, repository: str, patterns: list[str], *, kind: Literal["model", "dataset"], private: bool = False
) -> str:
    """Put a folder's files of these patterns into a repository, made if there is none; returns the commit.

    Raises UserError with the fix if that is not allowed, HubUnavailable if the Hub fails.
    """
    from huggingface_hub import HfApi

    check_login(repository)
    api = HfApi()
    with asking(f"write to {repository}"):
        # Without a wish the Hub's own default for this owner holds.
        api.create_repo(repository, repo_type=kind, private=private or None, exist_ok=True)
        if private and not api.repo_info(repository, repo_type=kind).private:
            raise UserError(f"{repository} is public; make it private on its page, or leave out --private")
        commit = api.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder, allow_patterns=patterns)
    return str(commit.oid)


def training_state(where: str) -> Path:
    """The training state that a person names, on this machine; from the Hub it is downloaded first, whole.

    The ledger, or at least who contributed to it, and the run's invitation lie beside it.

    :param where: a file or a folder, or a repository `OWNER/NAME`, `OWNER/NAME@REVISION`
    Raises UserError if there is no such thing or it cannot be downloaded.
    """
    local = expanded(where)
    if exists(local):
        return local.resolve()
    named = repository_and_revision(where)
    if named is None:
        raise UserError(f"{where} does not exist; --resume takes a folder, a file or OWNER/NAME[@REVISION] of the Hub")
    try:
        return _download(*named)
    except HubUnavailable as error:
        raise UserError(f"{where} cannot be downloaded ({error}); check the connection and try again") from None


def ledger_copy(repository: str, revision: str | None = None) -> Path | None:
    """The copy of a run's ledger in its repository, on this machine, in a folder of this commit; none if there is none.

    Nobody has looked at what it says yet. Raises UserError if it is too large or may not be read, HubUnavailable.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    with asking(f"read {repository}"):
        info = HfApi().model_info(repository, revision=revision)
        names = [f.rfilename for f in info.siblings or () if re.fullmatch(_LEDGER_TABLE, f.rfilename)][:_MAX_TABLES]
        folder = None
        for name in names:
            size = get_hf_file_metadata(hf_hub_url(repository, name, revision=info.sha)).size
            if size is None or size > MAX_LEDGER_BYTES:
                raise UserError(f"{name} in {repository} is too large for a table of a ledger; ask the organizer")
            folder = _file(repository, name, info.sha).parent
    return folder


def model_files(repository: str, revision: str | None, patterns: list[str]) -> Path:
    """The files of a model repository with these patterns, as of this revision or the newest one, in a folder on this
    machine.

    Raises UserError with the fix if the repository or the revision is not there for us, HubUnavailable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    with asking(f"read {repository}"):
        try:
            return fetched(
                repository,
                lambda bar: snapshot_download(repository, revision=revision, allow_patterns=patterns, tqdm_class=bar),
            )
        except GatedRepoError:
            raise UserError(
                f"{repository} is gated: ask for access on huggingface.co/{repository}, then {_LOG_IN}"
            ) from None
        except RepositoryNotFoundError:
            raise _not_there(repository) from None
        except RevisionNotFoundError:
            raise UserError(f"{repository} has no commit {revision}; its page lists the commits") from None


def closed(repository: str, revision: str | None, kind: Literal["model", "dataset"]) -> str:
    """Why nobody can read a repository without a token; empty if everybody can. A file of it is asked for.

    Raises UserError if it is not there at all, HubUnavailable.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with asking(f"read {repository}"):
        try:
            api = HfApi(token=False)
            look_up = api.model_info if kind == "model" else api.dataset_info
            info = look_up(repository, revision=revision)
            names = [file.rfilename for file in info.siblings or ()]
            for name in [name for name in names if not re.match(r"\.|README", name)][:1]:
                get_hf_file_metadata(hf_hub_url(repository, name, repo_type=kind, revision=info.sha), token=False)
        except GatedRepoError:
            return "gated"
        except RepositoryNotFoundError:
            return "private"
        return "gated" if info.gated else ""


def invitation_text(repository: str) -> str:
    """The newest invitation in a run's repository `OWNER/NAME`, as its JSON text, which nobody has validated yet.

    Raises UserError if there is none, HubUnavailable if the Hub does not answer.
    """
    from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError, RepositoryNotFoundError

    with asking(f"read {repository}"):
        try:
            try:
                return _read_invitation(repository)
            except HfHubHTTPError as error:
                if error.response.status_code != 401:
                    raise
                return _read_invitation(repository, token=False)  # a refused token hides even what is public
        except RepositoryNotFoundError:
            raise UserError(
                f"there is no {repository} on the Hub that you may read, and no such file; check the name, or {_LOG_IN}"
            ) from None
        except RemoteEntryNotFoundError:
            raise UserError(f"{repository} holds no {INVITATION_FILE}; ask the organizer for another address") from None
        except UnicodeDecodeError:
            raise UserError(f"the {INVITATION_FILE} in {repository} cannot be read; ask the organizer") from None


def _read_invitation(repository: str, token: Literal[False] | None = None) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    size = get_hf_file_metadata(hf_hub_url(repository, INVITATION_FILE), token=token).size
    if size is None or size > _MAX_INVITATION_BYTES:
        raise UserError(f"the {INVITATION_FILE} in {repository} is too large for an invitation")
    return _file(repository, INVITATION_FILE, token=token).read_text(encoding="utf-8")


def described(run: RunConfig) -> str:
    """The run's configuration for the public as JSON: of what lies on this machine only the name is told."""
    return json.dumps({"run_id": run.run_id, "run": published(run)}, indent=2, ensure_ascii=False) + "\n"


def _download(repository: str, revision: str | None) -> Path:
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    with asking(f"read {repository}"):
        try:
            state = _file(repository, STATE_FILE, revision)
        except RepositoryNotFoundError:
            raise _not_there(repository) from None
        except RevisionNotFoundError:
            raise UserError(f"{repository} has no revision {revision}; its page lists the commits") from None
        except RemoteEntryNotFoundError:
            raise UserError(f"{repository} holds no {STATE_FILE}, so no run can be resumed from it") from None
        for name in (CONTRIBUTORS_FILE, INVITATION_FILE):
            with suppress(RemoteEntryNotFoundError):
                _file(repository, name, state.parent.name)  # of the very same commit
    ledger_copy(repository, state.parent.name)
    return state


def _file(repository: str, name: str, revision: str | None = None, token: Literal[False] | None = None) -> Path:
    from huggingface_hub import hf_hub_download

    what = f"{name} of {repository}"
    return fetched(what, lambda bar: hf_hub_download(repository, name, revision=revision, token=token, tqdm_class=bar))


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn whatever goes wrong in huggingface_hub into a UserError or HubUnavailable."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars, get_session  # type: ignore[attr-defined]

    disable_progress_bars()
    leave_no_token()
    bound_silence(get_session())
    try:
        yield
    except UserError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in _FOR_NOW or status >= 500:
            raise HubUnavailable(f"the Hub answers with {status}") from None
        raise UserError(
            f"the Hub does not let you {what} ({_one_line(error)}); check the name and {_LOG_IN}, with a token that "
            "may do it (huggingface.co/settings/tokens)"
        ) from None
    except LocalEntryNotFoundError:
        raise HubUnavailable("the Hub does not answer") from None
    except HFValidationError as error:
        raise UserError(f"that is no name of a repository on the Hub ({_one_line(error)})") from None
    except Exception as error:  # connections fail with exceptions of several libraries and versions
        raise HubUnavailable(_one_line(error)) from None


def _not_there(repository: str) -> UserError:
    return UserError(f"there is no {repository} on the Hub that you may read; check the name, or {_LOG_IN}")


def _one_line(error: Exception) -> str:
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {''.join(filter(str.isprintable, said))[:200]}"


def _run_id(path: Path) -> str:
    """The run that a repository says it belongs to."""
    try:
        run_id = json.loads(path.read_text(encoding="utf-8"))["run_id"]
    except (ValueError, KeyError, TypeError):
        run_id = None
    return run_id if isinstance(run_id, str) and re.fullmatch("[a-z0-9-]{1,70}", run_id) else "of an unreadable name"
