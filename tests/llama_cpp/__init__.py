"""Real llama.cpp, by npm's `node-llama-cpp`: what it makes of a GGUF file.

Installed by `make llama-cpp`; tests that use it are skipped where it is absent. It runs as a child process, so such
tests are marked `child` or `soak`.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

_FOLDER = Path(__file__).parent
_PACKAGE = _FOLDER / "node_modules" / "node-llama-cpp" / "package.json"
_BINARIES = _FOLDER / "node_modules" / "@node-llama-cpp" / "linux-x64" / "package.json"

INSTALLED = bool(shutil.which("node") and _PACKAGE.is_file() and _BINARIES.is_file())
needs_llama_cpp = pytest.mark.skipif(not INSTALLED, reason="llama.cpp is not installed; run `make llama-cpp`")


class LlamaCpp:
    """A GGUF file in llama.cpp. Each call starts a process that loads it."""

    def __init__(self, model: Path, context: int = 256, vocabulary_only: bool = False) -> None:
        """
        :param context: the most tokens of a text and what follows it
        :param vocabulary_only: load no weights; `information`, `tokenize` and `detokenize` work then
        """
        self._job = {"model": str(model.absolute()), "context": context, "vocabulary_only": vocabulary_only}

    def ask(self, *requests: dict[str, Any]) -> list[Any]:
        """Return the answers to several requests, as `evaluate.mjs` describes them, in one process."""
        done = subprocess.run(
            ["node", str(_FOLDER / "evaluate.mjs")],
            input=json.dumps({**self._job, "requests": requests}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        answers: list[Any] = json.loads(done.stdout)
        return answers

    def information(self) -> dict[str, Any]:
        """Return `bos`, `eos`, `adds_bos`, `train_context` and what else `evaluate.mjs` names."""
        found: dict[str, Any] = self.ask({"kind": "information"})[0]
        return found

    def tokenize(self, texts: list[str], special: bool = False) -> list[list[int]]:
        """Return the token ids of each text, without those that stand around every text.

        :param special: whether a text such as `<s>` is that token
        """
        found: list[list[int]] = self.ask({"kind": "tokenize", "texts": texts, "special": special})[0]
        return found

    def detokenize(self, tokens: list[list[int]], special: bool = False) -> list[str]:
        """Return the text of each list of token ids."""
        found: list[str] = self.ask({"kind": "detokenize", "tokens": tokens, "special": special})[0]
        return found

    def log_probabilities(self, tokens: list[int]) -> npt.NDArray[np.float64]:
        """Return log p(next token) for the whole vocabulary after each token, [tokens, vocabulary]."""
        return np.array(self.ask({"kind": "log_probabilities", "tokens": tokens})[0], dtype=np.float64)

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """Return so many tokens that follow, each the most probable one."""
        found: list[int] = self.ask({"kind": "greedy", "tokens": tokens, "count": count})[0]
        return found

    def embed(self, inputs: list[Any]) -> npt.NDArray[np.float64]:
        """Return the embedding of each text or list of token ids, pooled as the file says, [inputs, width]."""
        return np.array(self.ask({"kind": "embed", "inputs": inputs})[0], dtype=np.float64)
