"""What the tasks have in common that train a model of transformers, named in `run.toml`, on packed documents."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, JsonValue, model_validator
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.labels import places_of
from dedloc_kit.learning.data.packing import Pack, Packer
from dedloc_kit.learning.data.pairs import Arrays
from dedloc_kit.learning.data.sampler import permutation
from dedloc_kit.learning.data.text.tokens import Document, vocabulary_hash
from dedloc_kit.learning.data.tokenizers.special_tokens import bos_eos
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.models.families import Family
from dedloc_kit.learning.models.init_from import Start, model_in
from dedloc_kit.learning.models.packed_attention import BOUNDS, document_bounds
from dedloc_kit.learning.models.vocabulary_transfer import Origins, origins, transplant
from dedloc_kit.learning.task import Batch, Example, Feature, VocabularyTransfer, create_task, rows
from dedloc_kit.learning.tasks.text.common import TextOptions, TextTask, dropping

BITS_PER_BYTE = "bits per byte"
"""What a decoder takes of the held-out text: it compares between vocabularies."""
_EVALUATION_TOKENS = 8192
"""At once."""
_ROWS_TOGETHER, _TOKENS_TOGETHER = 64, 32_768
"""At most so many samples are made together: a machine that takes one at a time waits for all of them."""


class PackedOptions(TextOptions):
    """The keys of `task` that such a task has, beside its name."""

    architecture: str
    """The architecture, by its `model_type` in transformers."""
    model: dict[str, JsonValue] = Field(default={})
    """The shape of the model: keys of the architecture's configuration class. The tokenizer gives `vocab_size`."""
    init_from: str | None = None
    """The pretrained model to continue from: `OWNER/NAME@COMMIT` of the Hub, or a folder of the organizer, also that of
    a run. It gives the architecture, the shape and the tokenizer where the file does not."""
    init_from_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of that model, where `init_from` is a folder; if it is missing an error message says it."""

    @model_validator(mode="before")
    @classmethod
    def _tokenizer_of_start(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(named := values.get("init_from"), str):
            model = model_in(named)
            return {"tokenizer": model, **values, "init_from": model}
        return values


@dataclass(frozen=True)
class HeldOut:
    """What is evaluated, always the same."""

    packs: list[Pack]
    documents: list[Document]
    """What was packed."""
    texts: list[str]
    """Of the documents in the packs, the last one cut where the packs end."""
    bytes: float
    """Of the texts in the packs, as UTF-8."""


class PackedTask(TextTask):
    """The common part of such tasks."""

    options: PackedOptions
    family: Family

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self.begin, self.end = self.edges()
        self._lookahead = 1 if self.family.causal else 0
        self.packer = Packer(self.begin, self.end, self.options.sequence_length, self._lookahead)
        self.config()  # what cannot be is told at once

    def edges(self) -> tuple[int, int]:
        """The tokens before and after each document."""
        return bos_eos(self.tokenizer, self.special_tokens)

    @cached_property
    def _start(self) -> Start | None:
        """The model that training goes on from."""
        return Start(self.options.init_from, self.options.init_from_sha256) if self.options.init_from else None

    def _load_tokenizer(self) -> Any:
        if self._start is not None and (self._start.is_on_hub or self.options.tokenizer == self.options.init_from):
            self._start.look()  # else it would be its tokenizer that is said to be gone
        return super()._load_tokenizer()

    def config(self) -> Any:
        """The model's configuration; raises UserError if it cannot be."""
        options, tokenizer = self.options, self.tokenizer
        # An embedding that pads learns nothing.
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id not in (self.begin, self.end) else None
        tokens = {"bos_token_id": self.begin, "eos_token_id": self.end, "pad_token_id": pad}
        tokens |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        architecture, values = options.architecture, dict(options.model)
        if self._start is not None:
            named = architecture if "architecture" in options.model_fields_set else None
            architecture, values = self._start.shape(self.family, named, values)
        if self.run.pipeline is not None:  # one matrix cannot be in the first stage and in the last
            values = {"tie_word_embeddings": False, **values}
        config = self.family.config(architecture, values, {"vocab_size": len(tokenizer), **tokens})
        longest = getattr(config, "max_position_embeddings", None) or options.sequence_length
        if options.sequence_length > longest:
            raise UserError(f"task.sequence_length must be at most task.model.max_position_embeddings ({longest})")
        return config

    def model(self) -> nn.Module:
        with self.seeded_weights():
            return self.family.build(self.config())

    def first_model(self) -> nn.Module:
        model = self.model()
        if self._start is not None:
            transplant(self._published(self._start), model, self._origins, seed_of(self.run.run_id, "vocabulary"))
        return model

    def vocabulary_transfer(self) -> VocabularyTransfer | None:
        if self._start is None:
            return None
        made = self._origins
        return VocabularyTransfer(made.copied, made.averaged, made.drawn)

    def start_loss(self) -> float | None:
        if self._start is None:
            return None
        if vocabulary_hash(load_tokenizer(self._start.name)) == self.vocabulary_hash:
            return self.evaluate(self.first_model()).loss
        if not self.family.causal:  # which tokens are hidden, and how easy they are to guess, is up to the vocabulary
            return None
        theirs, mine = self._with_its_vocabulary(), self.evaluate(self.model())
        bits: float | None = theirs.evaluate(theirs.first_model()).metrics.get(BITS_PER_BYTE)
        # A loss in our tokens has as many bits per byte whatever the model.
        return None if bits is None else bits * mine.loss / mine.metrics[BITS_PER_BYTE]

    def _with_its_vocabulary(self) -> Any:
        """The same task with the tokenizer of the model that it goes on from, evaluated on all of the same text."""
        options = {key: each for key, each in self.run.task.options.items() if key not in ("tokenizer", "vocab_size")}
        texts = self.held_out_packs().texts
        options["evaluation_samples"] = 1 + sum(len(text.encode()) for text in texts)
        task: Any = create_task(self.run.model_copy(update={"task": TaskConfig(name=self.run.task.name, **options)}))
        task.held_out_texts = texts
        return task

    def _published(self, start: Start) -> Any:
        """The model that training goes on from, with its own vocabulary; raises UserError if it is not the run's."""
        folder = start.weights()
        start.check_architecture(self.config().model_type)
        model: Any = self.family.load(folder)
        own, ours = self.family.published(model.config.to_dict()), self.family.published(self.config().to_dict())
        wrong = [key for key, value in own.items() if ours.get(key) != value and key not in self.options.model]
        if wrong:
            raise UserError(
                f"task.model says nothing of {wrong[0]}, which is {own[wrong[0]]!r:.80} in {start.shown}; put it there"
            )
        if self.family.unties(model) and self.config().tie_word_embeddings:
            raise UserError(
                f"{start.shown} has an output layer of its own, though its config.json says that it is tied to the "
                "embeddings; put into [task.model]: tie_word_embeddings = false"
            )
        rows, tokens = model.get_input_embeddings().num_embeddings, len(load_tokenizer(start.name))
        if tokens > rows:
            raise UserError(
                f"the tokenizer of {start.shown} has {tokens} tokens, its model {rows}: they do not belong together; "
                "name another model"
            )
        return model

    @cached_property
    def _origins(self) -> Origins:
        assert self._start is not None
        old = load_tokenizer(self._start.name)
        if vocabulary_hash(old) == self.vocabulary_hash:
            return Origins([[number] for number in range(len(old))])
        return origins(self.tokenizer, old)

    def prepare(self, batch: Batch) -> Batch:
        """Where documents begin, and in place of the labels the places that have some, see `places_of`."""
        kept = {name: values for name, values in batch.items() if name != "labels"}
        return {**kept, BOUNDS: document_bounds(batch["position_ids"]), **self.targets(batch["labels"])}

    def targets(self, labels: torch.Tensor) -> Batch:
        """What the loss takes in place of labels [rows, length]."""
        return places_of(labels)

    @abstractmethod
    def arrays(self, pack: Pack, rng: np.random.Generator) -> Arrays:
        """The samples of a pack."""

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        together = max(1, min(_ROWS_TOGETHER, _TOKENS_TOGETHER // self.options.sequence_length))
        for pack in self.packer.packs(self.texts.documents(records), together):
            yield from rows(self.arrays(pack, rng))

    def batches_of(self, records: Iterable[Any], microbatch: int, seed: int) -> Iterator[Batch]:
        """All sequences of a block are shuffled, for a long document fills several one after the other."""
        found = list(self.examples(records, np.random.default_rng(seed_of(seed, "examples"))))
        order = permutation(len(found), seed_of(seed, "sequences")).tolist()
        for begin in range(0, len(order), microbatch):
            yield self.collate([found[number] for number in order[begin : begin + microbatch]])

    def unsupported(self, feature: Feature) -> str:
        match feature:
            case "init_from":
                return ""
            case "checks":
                values = self.config().to_dict()
                experts = [key for key in values if "expert" in key]
                rounding = f"which expert a word goes to hangs on rounding (task.model.{experts[0]})" if experts else ""
                return dropping(values) or (rounding and f"{rounding}; choose another architecture")
        return super().unsupported(feature)

    def held_out_packs(self) -> HeldOut:
        """As many sequences as `task.evaluation_samples` says, or what there is; UserError if that is not one."""
        options = self.options
        source, items = self.held_out()
        wanted = options.evaluation_samples * options.sequence_length + self._lookahead
        edges = 1 if self.begin == self.end else 2
        documents: list[Document] = []
        texts: list[str] = []
        held, size = 0, 0.0
        for item in items:
            text = item if isinstance(item, str) else self.tokenizer.decode(item.ids.tolist())
            parts = list(self.texts.documents([item]))
            tokens = sum(len(part.ids) + edges for part in parts)
            documents += parts
            part = min(1.0, (wanted - held) / max(1, tokens))
            texts.append(text[: round(part * len(text))])
            size += len(text.encode()) * part
            held += tokens
            if held >= wanted:
                break
        rows = max(1, _EVALUATION_TOKENS // options.sequence_length)
        counts = (min(rows, options.evaluation_samples - start) for start in range(0, options.evaluation_samples, rows))
        packs = [
            Pack(pack.ids[:count], pack.positions[:count])
            for count, pack in zip(counts, self.packer.packs(documents, rows), strict=False)
        ]
        if not packs:
            raise UserError(f"{source.dataset} holds less text than one sample; choose other held-out data")
        packed = sum(pack.positions.size for pack in packs)
        return HeldOut(packs, documents, texts, size * packed / min(held, wanted))
