"""Which hosted notebook this is, if it is one: what helps a volunteer differs between them."""

import os
from typing import Literal


def hosted() -> Literal["colab", "kaggle"] | None:
    """Where this process runs; none on a machine of one's own."""
    # Kaggle builds its images on Colab's, so Colab's marks prove nothing until Kaggle's are missing.
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "kaggle"
    return "colab" if "COLAB_RELEASE_TAG" in os.environ else None
