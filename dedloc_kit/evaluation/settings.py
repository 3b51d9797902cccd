"""What an evaluation is made of; it imports nothing heavy, so that the command line can show the defaults."""

from typing import Annotated, Literal

from pydantic import Field

from dedloc_kit.run import PositiveFloat, PositiveInt, Section


class Settings(Section):
    """One evaluation. The same settings and checkpoint give the same scores on the same machine."""

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


DATASETS = {
    "ner": Defaults(dataset="unimelb-nlp/wikiann", column="tokens", label_column="ner_tags"),
    "classification": Defaults(dataset="ai4bharat/indic_glue", column="text", label_column="label"),
}
"""WikiANN (Pan et al. 2017) and IndicGLUE (Kakwani et al. 2020), whose subset `sna.bn` is news in Bengali."""
