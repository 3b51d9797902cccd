"""Each mutation of `tests.mutations` still has its place; whether it is caught is tried by hand."""

import ast

import pytest

from tests.mutations import CHECKOUT, MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_one_place_and_leaves_python(mutation: Mutation) -> None:
    source = (CHECKOUT / "dedloc_kit" / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1
    if mutation.file.endswith(".py"):
        ast.parse(source.replace(mutation.old, mutation.new))
