"""A tokenizer without transformers, which takes seconds to import: for who reads token ids, or a few captions."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from dedloc_kit.config.places import HAVE_IT_HERE
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, model_files, repository_and_revision
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.text.tokens import hash_of_tokens

FILE = "tokenizer.json"


class BareTokenizer:
    """What is in a tokenizer's file, of a folder or the Hub; raises UserError if there is none.

    :param name: as for `load_tokenizer`

    :ivar tokens: how many there are
    :ivar vocabulary_hash: as `tokens.vocabulary_hash` has it
    """

    def __init__(self, name: str) -> None:
        path = tokenizer_files(name, [FILE]) / FILE
        hint = "make one with: dedloc prepare tokenizer RUN.toml"
        if not path.is_file():
            raise UserError(f"the tokenizer {name} does not exist or has no {FILE}; {hint}")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more specific
            raise UserError(f"the tokenizer {name} cannot be loaded ({str(error)[:200]}); {hint}") from None
        self._plain = PlainTokenizer(self._tokenizer)
        self.tokens: int = self._tokenizer.get_vocab_size()
        self.vocabulary_hash = hash_of_tokens(self._tokenizer.id_to_token(id_) or "" for id_ in range(self.tokens))

    def ids(self, text: str) -> list[int]:
        """Without special tokens, whatever the text spells."""
        return self._plain.ids(text)

    def text(self, ids: list[int]) -> str:
        """What they spell."""
        spelled: str = self._tokenizer.decode(ids)
        return spelled

    def save(self, folder: Path) -> None:
        """Write its file to an existing folder."""
        self._tokenizer.save(str(folder / FILE))


def tokenizer_files(name: str, files: Iterable[str]) -> Path:
    """The folder with a tokenizer's files, from the Hub unless the name is an absolute path; which is not looked at.

    Raises UserError if the Hub has no such tokenizer for us.
    """
    if Path(name).is_absolute():
        return Path(name)
    if (on_hub := repository_and_revision(name)) is None:
        raise UserError(f"the tokenizer {name} does not exist: on the Hub it is OWNER/NAME; {HAVE_IT_HERE}")
    where, revision = on_hub
    try:
        return model_files(where, revision or "main", list(files))
    except HubUnavailable as error:
        raise UserError(f"the tokenizer {where} cannot be read now ({error}); try again later") from None
