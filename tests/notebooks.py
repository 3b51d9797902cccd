"""Notebooks as everything that shows or runs them reads them."""

from pathlib import Path
from typing import Any


def valid(text: str) -> Any:
    """A notebook, which has to be one."""
    import nbformat  # compiles grammars for seconds, in each process that collects

    read = nbformat.reads(text, as_version=4)
    nbformat.validate(read)
    return read


def of_cells(*cells: str) -> Any:
    """A notebook of these code cells."""
    import nbformat

    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def execute(notebook: Any, deadline: float, folder: Path, environment: dict[str, str]) -> None:
    """Run all cells in a folder; what they print is in the notebook then."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=deadline, kernel_name="python3", resources=resources).execute(env=environment)
