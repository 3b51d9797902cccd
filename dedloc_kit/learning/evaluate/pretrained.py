"""A trained model: its tokenizer, its architecture, as many copies as there are seeds, and its forward pass."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.fetching import fetched
from dedloc_kit.hub import repository_and_revision
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.sources.patience import one_line
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.evaluate.problems import Problem
from dedloc_kit.machine.paths import expanded, is_folder
from dedloc_kit.pretrained import CONFIG, GENERATION_CONFIG, TOKENIZER_FILES, WEIGHTS, load_pretrained, load_weights

if TYPE_CHECKING:
    from dedloc_kit.learning.task import Task

Kind = Literal["causal", "masked"]

_ADDED = "pooler"
"""A part that an encoder may have on top and that not every kind of training trains."""


class Pretrained:
    """A folder in the form that `save_pretrained` of transformers writes."""

    def __init__(self, where: str, max_length: int) -> None:
        """Raises UserError if the model or its tokenizer cannot be loaded, or one does not fit the other."""
        from transformers import AutoConfig

        self.where = where
        try:
            self.config: Any = load_pretrained(AutoConfig, where)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{where} holds no model that transformers loads ({one_line(error)}); name a folder that does, or a "
                "checkpoint of a run (*.safetensors) together with --run RUN.toml"
            ) from None
        try:
            self.tokenizer = load_tokenizer(where)
        except UserError as error:
            raise UserError(
                f"{where} has no tokenizer of its own; save the run's tokenizer into it ({error})"
            ) from None
        if len(self.tokenizer) > self.config.vocab_size:
            raise UserError(
                f"the tokenizer in {where} has {len(self.tokenizer)} tokens, the model {self.config.vocab_size}; "
                "put the tokenizer there that the model was trained with"
            )
        self.kind: Kind | None = _kind_of(self.config)
        """What it predicts; none if that is no tokens."""
        longest = min(self.tokenizer.model_max_length, getattr(self.config, "max_position_embeddings", max_length))
        self.max_length = min(max_length, longest)

    def model(self, problem: Problem, random_weights: bool) -> torch.nn.Module:
        """The encoder with a new output layer for the problem's classes, on the CPU; torch's random state decides it.

        With `random_weights` the encoder is as new as the layer. Raises UserError if the checkpoint lacks weights of
        the encoder, or if they are not stored as safetensors.
        """
        import transformers

        config = type(self.config).from_dict(
            {
                **self.config.to_dict(),
                "id2label": dict(enumerate(problem.classes)),
                "label2id": {name: number for number, name in enumerate(problem.classes)},
                "problem_type": "single_label_classification",
            }
        )
        head = getattr(transformers, problem.head)
        if random_weights:
            model: torch.nn.Module = head.from_config(config, trust_remote_code=False)
            return model.float()
        model, missing = self._load(head, config)
        prefix = f"{model.base_model_prefix}."
        self._check([name for name in missing if name.startswith(prefix) and _ADDED not in name], "the encoder")
        return model

    def language_model(self, dtype: torch.dtype | Literal["auto"] = torch.float32) -> torch.nn.Module:
        """The model with the output layer that it was trained with, on the CPU.

        :param dtype: auto: as its weights are stored

        Raises UserError if it predicts no tokens, if weights are missing, or if they are not stored as safetensors.
        """
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

        if self.kind is None:
            names = ", ".join(self.config.architectures or ()) or "nothing"
            raise UserError(
                f"{self.where} predicts no tokens (its config.json names {names}); name a causal or masked language "
                "model, saved with its output layer"
            )
        head = AutoModelForCausalLM if self.kind == "causal" else AutoModelForMaskedLM
        model, missing = self._load(head, dtype=dtype)
        self._check([name for name in missing if _ADDED not in name], "the model")
        return model

    def _load(
        self, head: Any, config: Any = None, dtype: torch.dtype | Literal["auto"] = torch.float32
    ) -> tuple[torch.nn.Module, list[str]]:
        """The model, and the names of weights that its folder lacks."""
        try:
            own = config if config is not None else self.config
            return load_weights(head, self.where, config=own, dtype=dtype)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"the model in {self.where} cannot be loaded ({one_line(error)}); save it again") from None

    def _check(self, missing: list[str], part: str) -> None:
        if missing:
            raise UserError(
                f"{self.where} lacks {len(missing)} weights of {part}, such as {missing[0]}; "
                "it is not a model of this architecture, save it again"
            )


def forward(
    model: torch.nn.Module,
    rows: Sequence[Sequence[int]],
    pad: int,
    half: torch.dtype | None,
    labels: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Return the output of a model of transformers for some rows of tokens, the shorter ones padded.

    :param half: what autocast computes with; scores that float16 cannot hold are computed again in float32
    """
    device = next(model.parameters()).device
    inputs = {"input_ids": _padded(rows, pad), "attention_mask": _padded([[1] * len(row) for row in rows], 0)}
    if labels is not None:
        inputs["labels"] = _padded(labels, IGNORED)
    inputs = {name: values.to(device) for name, values in inputs.items()}
    with torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
        output: Any = model(**inputs)
    if half is torch.float16 and not output.logits.isfinite().all():
        output = model(**inputs)
    return output


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def _kind_of(config: Any) -> Kind | None:
    """What a model of this configuration was trained to predict."""
    from transformers.models.auto import modeling_auto

    names = set(config.architectures or ())
    if config.is_encoder_decoder:
        return None
    if names & set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return "causal"
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # BERT's and ALBERT's own training has a second output beside the masked tokens.
    both = {modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(config.model_type)} - {None}
    return "masked" if config.model_type in masked and names & {masked[config.model_type], *both} else None


@contextmanager
def opened(names: Sequence[str], run: RunConfig | None, max_length: int) -> Iterator[list[Pretrained]]:
    """The models of these names (see `as_folder`); raises UserError if one cannot be loaded."""
    with ExitStack() as stack:
        folders = [stack.enter_context(as_folder(name, run)) for name in names]
        yield [Pretrained(folder, max_length) for folder in folders]


@contextmanager
def as_folder(checkpoint: str, run: RunConfig | None) -> Iterator[str]:
    """The checkpoint as a local folder that transformers loads.

    It may be such a folder, a repository on the Hub (`OWNER/NAME`, also `@REVISION`), which is downloaded, or the
    weights alone (safetensors) together with their run. Raises UserError if it is none of these.
    """
    from transformers.utils import logging

    # A new output layer is meant to be new; the bar of each loading would break up our own.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = expanded(checkpoint)
    if run is not None and path.suffix == ".safetensors":
        with TemporaryDirectory(prefix="dedloc-evaluate-") as folder:
            _save_as_folder(path, run, folder)
            yield folder
    elif is_folder(path):
        yield str(path.absolute())
    elif path.suffix == ".safetensors":
        raise UserError(f"{checkpoint} holds weights alone; name the run that they are of with --run RUN.toml")
    elif checkpoint.startswith((".", "/", "~")) or (on_hub := repository_and_revision(checkpoint)) is None:
        raise UserError(f"{checkpoint} does not exist; name a folder with a model, or one on the Hub as OWNER/NAME")
    else:
        yield _downloaded(*on_hub)


def _downloaded(repository: str, revision: str | None) -> str:
    from huggingface_hub import snapshot_download

    files = [CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, *WEIGHTS]
    try:
        return str(
            fetched(
                repository,
                lambda bar: snapshot_download(repository, revision=revision, allow_patterns=files, tqdm_class=bar),
            )
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{repository} is neither a folder nor a model that is open to you on the Hub ({one_line(error)}); "
            "correct the name, check the connection, or log in with: hf auth login"
        ) from None


def _save_as_folder(path: Path, run: RunConfig, folder: str) -> None:
    from dedloc_kit.learning.task import create_task

    task = create_task(run)
    if task.export(with_weights(task, run, path), Path(folder), path.name) is None:
        raise UserError(f"the task '{run.task.name}' trains no language model of transformers; evaluate one that does")


def with_weights(task: "Task", run: RunConfig, path: Path) -> torch.nn.Module:
    """The model of a run's task with the weights in a checkpoint (safetensors), on the CPU.

    Raises UserError if the file is none of this run's.
    """
    from dedloc_kit.learning.train.state.checkpoint import load

    try:
        tensors, _ = load(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a checkpoint of the run") from None
    except ValueError as error:
        raise UserError(f"{error}; name another checkpoint of the run") from None
    return with_tensors(task, run, tensors, path)


def with_tensors(task: "Task", run: RunConfig, tensors: Mapping[str, torch.Tensor], path: Path) -> torch.nn.Module:
    """The same with the tensors of a checkpoint, which came from there."""
    if run.experts is not None:
        return _mixed(_filled(task.model(), run, tensors, path), run.experts, tensors, path)
    if run.pipeline is None:
        return _filled(task.model(), run, tensors, path)
    parts = [task.stage(number).model() for number in range(run.pipeline.count)]
    for number, part in enumerate(parts):
        begin = f"stage{number}."
        own = {name.removeprefix(begin): each for name, each in tensors.items() if name.startswith(begin)}
        _filled(part, run, own, path)
    return task.whole(parts)


def _mixed(
    model: torch.nn.Module, settings: ExpertsConfig, tensors: Mapping[str, torch.Tensor], path: Path
) -> torch.nn.Module:
    from dedloc_kit.experts.mixture import connect_alone
    from dedloc_kit.experts.state import frozen_of

    try:
        connect_alone(model, frozen_of(settings, tensors))
    except ValueError as error:
        raise UserError(f"{path} cannot be used: {error}; name a checkpoint of the organizer's") from None
    return model


def _filled(model: torch.nn.Module, run: RunConfig, tensors: Mapping[str, torch.Tensor], path: Path) -> torch.nn.Module:
    # A checkpoint of the coordinator holds the optimizer's state as well; what a peer leaves, the weights alone.
    state = "model." if all(f"model.{name}" in tensors for name, _ in islice(model.named_parameters(), 1)) else ""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            given = tensors.get(f"{state}{name}")
            if given is None or given.shape != parameter.shape:
                raise UserError(f"{path} has no {name} like the model of {run.run_id}; name a checkpoint of this run")
            parameter.copy_(given)
    return model
