"""Each mutation of `tests.mutations` still has its place; whether it is caught is tried by hand."""

import ast
from itertools import groupby

from tests.mutations import CHECKOUT, MUTATIONS, Mutation


def fault(source: str, mutation: Mutation) -> str | None:
    if (places := source.count(mutation.old)) != 1:
        return f"{mutation.name}: {places} places in {mutation.file}"
    if mutation.file.endswith(".py"):
        try:
            ast.parse(source.replace(mutation.old, mutation.new))
        except SyntaxError as error:
            return f"{mutation.name}: leaves no Python ({error})"
    return None


def test_a_mutation_has_one_place_and_leaves_python() -> None:
    faults = []
    for file, some in groupby(sorted(MUTATIONS, key=lambda one: one.file), key=lambda one: one.file):
        source = (CHECKOUT / "dedloc_kit" / file).read_text(encoding="utf-8")
        faults += [told for mutation in some if (told := fault(source, mutation))]
    assert faults == []
