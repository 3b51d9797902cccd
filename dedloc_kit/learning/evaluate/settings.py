"""What an evaluation is made of; it imports nothing heavy, so that the command line can show the defaults."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dedloc_kit.config.section import PositiveFloat, PositiveInt, Section


class Settings(Section):
    """One evaluation by fine-tuning. The same settings and checkpoint give the same scores on the same machine."""

    task: Literal["ner", "classification"] = "ner"
    """Named-entity recognition, scored by F1, or the classification of texts, scored by accuracy."""
    dataset: str | None = Field(default=None, min_length=1)
    """On the Hub (`owner/name`) or a local folder; the default is the task's (see `DATASETS`)."""
    subset: str | None = None
    """The Hub dataset's configuration: the language in WikiANN (`bn`), `sna.bn` in IndicGLUE."""
    column: str | None = None
    """The column with the words or the text; the default is the task's, as with the labels'."""
    label_column: str | None = None
    seeds: PositiveInt = 3
    """Fine-tunings that differ in the new layer's weights, the order of the samples and dropout."""
    epochs: PositiveInt = 3
    learning_rate: PositiveFloat = 3e-4
    """The largest one of AdamW; it rises over the first tenth of the steps and then falls to zero."""
    batch: PositiveInt = 32
    max_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a sample, at most what the model takes; what is longer is cut off."""
    train_samples: PositiveInt | None = None
    """Train on so many samples, drawn at random, the same for every seed; by default on all."""


class LikelihoodSettings(Section):
    """One evaluation of what a model holds for probable, without training. The same settings give the same scores."""

    task: Literal["text", "pairs"] = "text"
    """Held-out text, scored by bits per byte, or minimal pairs, by how often the right sentence is the likelier one."""
    dataset: str | None = Field(default=None, min_length=1)
    """On the Hub (`owner/name`), a local folder or a file; of text by default the run's held-out data."""
    subset: str | None = None
    """The Hub dataset's configuration: the language in MultiBLiMP (`hin`)."""
    column: str | None = None
    """The column with the text or the right sentence."""
    label_column: str | None = None
    """Of pairs: the column with the wrong sentence."""
    samples: PositiveInt | None = None
    """At most so many documents (by default 200, the first ones) or pairs (1,000, drawn at random)."""
    words: PositiveInt = 1000
    """So many words of the text, drawn at random, are hidden from a masked model."""
    max_length: Annotated[int, Field(ge=16)] = 512
    """Tokens that a model sees at once, at most what it takes. To masked ones it is bytes, at most as many as all take
    tokens: no tokenizer makes more tokens than bytes, and the excerpts have to be the same for all models."""

    @model_validator(mode="after")
    def _is_of_use(self) -> "LikelihoodSettings":
        others = {"text": ("label_column",), "pairs": ("words",)}[self.task]
        for key in others:
            if key in self.model_fields_set:
                raise ValueError(f"{key} tells {self.task} nothing; leave it out, or choose another task")
        return self


class SuiteSettings(Section):
    """One evaluation by standard suites, with lm-evaluation-harness: its scores, and those of `lm_eval` itself."""

    suite: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names, such as belebele, and files of tasks, `*.yaml`."""
    language: str | None = None
    """Of the suites that have names: a code of ISO 639."""
    samples: PositiveInt | None = None
    """At most so many questions of each task, the first ones; by default all."""
    batch: PositiveInt = 8
    """Rows that the model takes at once."""


class ProbeSettings(Section):
    """One evaluation of features. The same settings and checkpoint give the same scores on the same machine."""

    seeds: PositiveInt = 3
    """Linear classifiers that differ in the order of the samples; random weights are others for each, too."""
    epochs: PositiveInt = 100
    learning_rate: PositiveFloat = 1.0
    """The first one of SGD; it falls to zero along half a cosine."""
    batch: PositiveInt = 256
    train_samples: PositiveInt | None = None
    """Learn from the first so many; by default from all."""


class Defaults(Section):
    """Where a task's samples are, as in the paper's table."""

    dataset: str
    column: str
    label_column: str
    subset: str
    """An example of its parts, for who names none."""


DATASETS = {
    "ner": Defaults(dataset="unimelb-nlp/wikiann", column="tokens", label_column="ner_tags", subset="bn"),
    "classification": Defaults(dataset="ai4bharat/indic_glue", column="text", label_column="label", subset="sna.bn"),
    "pairs": Defaults(dataset="jumelet/multiblimp", column="sen", label_column="wrong_sen", subset="hin"),
}
"""WikiANN (Pan et al. 2017), IndicGLUE (Kakwani et al. 2020), whose subset `sna.bn` is news in Bengali, and MultiBLiMP
(Jumelet et al. 2025), whose subsets are languages by their code of three letters."""
