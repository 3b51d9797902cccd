"""Causal language modelling: a decoder of transformers tells each next token, in packed documents."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import PositiveInt
from dedloc_kit.errors import UserError
from dedloc_kit.experts.mixture import imbalance_of
from dedloc_kit.learning.data.labels import PLACES, TARGETS, at_places
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.packing import Pack
from dedloc_kit.learning.data.pairs import Arrays
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.models.families import DECODERS, softcap
from dedloc_kit.learning.models.output_loss import output_loss
from dedloc_kit.learning.models.packed_attention import BOUNDS
from dedloc_kit.learning.models.parts import Cut, check_divisible, copies
from dedloc_kit.learning.models.stage import DecoderStage
from dedloc_kit.learning.models.to_transformers import stock, why_not_stock
from dedloc_kit.learning.models.with_experts import check_experts, give_experts
from dedloc_kit.learning.task import Batch, Feature, Loss, StageTask, Usage, prepared
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.learning.tasks.text.common import dropping, evaluating, tensors
from dedloc_kit.learning.tasks.text.continuation import Continuations, Continued
from dedloc_kit.learning.tasks.text.packed import BITS_PER_BYTE, PackedOptions, PackedTask
from dedloc_kit.records.evaluation import Evaluation

_USAGE = """\
from transformers import pipeline

write = pipeline("text-generation", model="{repository}")
print(write("Put the beginning of a text here", max_new_tokens=50, do_sample=True)[0]["generated_text"])
"""


class CausalOptions(PackedOptions):
    """The keys of `task` for a decoder, beside its name."""

    architecture: str = "llama"
    """The architecture, by its `model_type` in transformers: one with a causal language model."""
    shared_layers: PositiveInt = 1
    """The number of consecutive layers that share their weights; they are stored, averaged and sent once."""


class Causal(PackedTask):
    """The task `causal`."""

    Options = CausalOptions
    options: CausalOptions
    special_tokens = CAUSAL
    family = DECODERS

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self.sample_tokens = self.options.sequence_length
        self._evaluation: list[Batch] = []
        self._bytes = 0.0
        self._continuations: Continued | None = None
        layers, shared = self.config().num_hidden_layers, self.options.shared_layers
        if layers % shared:
            raise UserError(f"task.shared_layers must divide task.model.num_hidden_layers ({layers})")
        if shared > 1 and self.options.init_from:
            raise UserError("the layers of task.init_from have weights of their own; remove one of them")
        if run.experts is not None:
            check_experts(self.config(), run.experts)

    def model(self) -> nn.Module:
        if self.run.pipeline is None and self.options.shared_layers == 1:
            model = super().model()
            if self.run.experts is not None:
                give_experts(model, self.family, self.run.experts, self.run.run_id)
            return model
        cut = self.cut()
        model = cut.whole([cut.build(number) for number in range(len(cut.layers))])
        self.family.check(model)
        return model

    def unsupported(self, feature: Feature) -> str:
        match feature:
            case "experts" if self.options.shared_layers > 1:
                return "layers that share weights would share a gate, but no experts; remove task.shared_layers"
            case "experts" if self.options.init_from:
                return "task.init_from is a whole model, which has no experts; remove one of them"
            case "experts" | "distributed_eval":
                return ""
            case "to_transformers":
                return why_not_stock(self.config().model_type)
            case "pipeline":
                return self._why_undivided()
        return super().unsupported(feature)

    def to_transformers(self, model: nn.Module, folder: Path) -> nn.Module:
        assert self.run.experts is not None
        return stock(model, self.run.experts, folder)

    def _why_undivided(self) -> str:
        if self.options.init_from:
            return "task.init_from is a whole model, from which stages cannot go on yet; remove one of them"
        if self.config().tie_word_embeddings:
            return "the first and the last stage cannot share a matrix; set task.model.tie_word_embeddings to false"
        if drops := dropping(self.config().to_dict()):
            return drops
        stages = 1 if self.run.pipeline is None else self.run.pipeline.stages
        cut, shared = self.cut(), self.options.shared_layers
        layers = cut.config.num_hidden_layers
        if isinstance(stages, int) and stages > (own := layers // shared):
            return f"the model has {own} layers with weights of their own; set pipeline.stages to at most that"
        if sum(cut.layers) != layers:
            return f"pipeline.stages has {sum(cut.layers)} layers, task.model.num_hidden_layers is {layers}"
        if any(count % shared for count in cut.layers):
            return f"{shared} layers share weights: every number in pipeline.stages must be a multiple of that"
        try:
            check_divisible(cut.config)
        except UserError as error:
            return f"{error}; choose another task.architecture"
        return ""

    def stage(self, number: int) -> StageTask:
        unlabelled = not self.labels_all

        def loss(model: nn.Module, output: nn.Linear, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return self._loss(model, output, hidden, self.targets(labels))  # waits for the device, as a stage may

        return DecoderStage(self.cut(), number, self.sample_tokens, unlabelled, self.groups, loss)

    def whole(self, stages: Sequence[nn.Module]) -> nn.Module:
        return self.cut().whole(stages)

    def cut(self) -> Cut:
        """How the run divides the model; one part where it does not."""
        config, pipeline, shared = self.config(), self.run.pipeline, self.options.shared_layers
        layers: int = config.num_hidden_layers
        if pipeline is None:
            counts: tuple[int, ...] = (layers,)
        elif isinstance(pipeline.stages, int):
            bounds = [layers // shared * number // pipeline.stages for number in range(pipeline.stages + 1)]
            counts = tuple((end - begin) * shared for begin, end in pairwise(bounds))
        else:
            counts = pipeline.stages
        # All parts of a run have its first weights, whichever id they go by.
        return Cut(config, shared, counts, f"{self.run.name}-{self.run.fingerprint}")

    def arrays(self, pack: Pack, rng: np.random.Generator) -> Arrays:
        inputs, labels = pack.ids[:, :-1], pack.ids[:, 1:]
        if not self.labels_all:  # what comes after an end is another document, of which nothing is known yet
            labels = labels.copy()
            labels[inputs == self.end] = IGNORED
        return {"input_ids": inputs, "position_ids": pack.positions, "labels": labels}

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        """With experts their imbalance counts for each token of a sample."""
        transformer: Any = model
        hidden = self.family.hidden(model, batch["input_ids"], batch["position_ids"], batch[BOUNDS])
        mean = self._loss(model, transformer.get_output_embeddings(), hidden, batch)
        loss = Loss.of(mean, len(batch[TARGETS]))
        if self.run.experts is None:
            return loss
        factor = self.run.experts.aux_loss_weight * batch["input_ids"].numel()
        return loss._replace(total=loss.total + factor * imbalance_of(model))

    @property
    def labels_all(self) -> bool:
        """Whether every token of a row has a label."""
        return self.begin == self.end

    def targets(self, labels: torch.Tensor) -> Batch:
        return {TARGETS: labels.flatten()} if self.labels_all else super().targets(labels)

    def _loss(self, model: nn.Module, output: nn.Linear, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        scored = hidden.flatten(0, 1) if self.labels_all else at_places(hidden, batch[PLACES])
        return output_loss(scored, output, batch[TARGETS], softcap(model))

    def evaluate(self, model: nn.Module) -> Evaluation:
        """The loss per token in nats, `perplexity`, `bits per byte`, and held-out beginnings that the model continues.

        Bits per byte: what all tokens of the held-out sequences take, the ends of documents included, over the bytes
        of their texts in UTF-8 as they were before the tokenizer. So runs with different vocabularies compare.
        """
        batches = self.held_out_batches()
        with evaluating(model) as device:
            losses = [self.loss(model, prepared(self, kept, device), 0) for kept in batches]
            nats, tokens = (float(sum(each)) for each in zip(*losses, strict=True))
            samples = self._continuations.written(model) if self._continuations else ()
        return self.evaluation_of(nats / tokens).model_copy(update={"samples": samples})

    def weight(self, batch: Batch) -> float:
        return float((batch["labels"] != IGNORED).sum())

    def evaluation_of(self, loss: float) -> Evaluation:
        tokens = sum(map(self.weight, self.held_out_batches()))
        told = {"perplexity": math.exp(min(loss, 30.0)), BITS_PER_BYTE: loss * tokens / math.log(2) / self._bytes}
        metrics = {name: value for name, value in told.items() if value < 1e9}  # not if it has diverged
        return Evaluation(loss=loss, metrics=metrics, held_out=self.held_out_hash)

    def held_out_batches(self) -> Sequence[Batch]:
        if not self._evaluation:
            held_out = self.held_out_packs()
            self._bytes = held_out.bytes
            self._continuations = Continuations(held_out.documents, self.tokenizer, self.begin, self.run.seed)
            nothing_drawn = np.random.default_rng(0)
            self._evaluation = [tensors(self.arrays(pack, nothing_drawn)) for pack in held_out.packs]
            self.held_out_hash = hash_of(self._evaluation)
        return self._evaluation

    @property
    def put_in_front(self) -> int | None:
        """The token that an exported tokenizer puts in front of a text; none: the tokenizer stays as it is."""
        return self.begin

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage:
        """What `AutoModelForCausalLM`, `AutoTokenizer` and the pipeline `text-generation` of transformers load.

        The tokenizer puts the token in front of a text that stood there in training. Of weights that layers share each
        gets its copy. A model with experts is written as an architecture of transformers that tells the same; raises
        UserError if there is none.
        """
        if self.run.experts is not None:
            model = self.to_transformers(model, folder)
        tensors = copies(model) if self.options.shared_layers > 1 else None
        self.save(model, folder, begin=self.put_in_front, tensors=tensors)
        return Usage("transformers", "text-generation", _USAGE.format(repository=repository))
