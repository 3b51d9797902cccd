"""What the tensors of a checkpoint are in the library's classes: renamed, or several merged into one.

Published mixtures of experts have a tensor for each matrix of each expert, and the library's classes one for all of a
layer's. How they become one the library itself says, family by family.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from dedloc_kit.errors import UserError


class Conversion:
    """As the library does it when it loads this model. What becomes several tensors is left as it is."""

    def __init__(self, model: Any) -> None:
        transforms = get_model_conversion_mapping(model)
        self._config = model.config
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [
            each for each in transforms if isinstance(each, WeightConverter) and len(each.target_patterns) == 1
        ]

    def name(self, stored: str) -> str:
        """Of a checkpoint's tensor in the model; alike for those that are merged."""
        return self._found(stored)[0]

    def tensor(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The model's tensor from all those of a checkpoint that have one name there; raises UserError."""
        collected: dict[str | None, list[Tensor]] = defaultdict(list)
        for name in sorted(stored, key=_by_numbers):
            collected[self._found(name)[1]].append(stored[name])
        if None in collected:
            if len(stored) > 1:
                raise UserError(f"the checkpoint holds {min(stored)} twice, under several names")
            return collected[None][0]
        converter = next(each for each in self._converters if set(collected) <= set(each.source_patterns))
        patterns = {"source_patterns": converter.source_patterns, "target_patterns": converter.target_patterns}
        found: Any = collected
        try:
            for operation in converter.operations:
                found = operation.convert(found, **patterns, config=self._config)
            (tensor,) = found.values()
        except Exception as error:  # each operation checks what it is given in its own way, or not at all
            raise UserError(f"{min(stored)} and what belongs to it do not fit together ({error!r:.200})") from None
        merged: Tensor = tensor[0] if isinstance(tensor, list) else tensor
        return merged

    def _found(self, stored: str) -> tuple[str, str | None]:
        """The name in the model, and the pattern of what is converted."""
        name, pattern = rename_source_key(stored, self._renamings, self._converters)
        return name, pattern


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """The tenth expert comes after the second."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
