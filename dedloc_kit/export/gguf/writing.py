"""Writes a GGUF file tensor by tensor: it is there as a whole or not at all."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf import config, weights
from dedloc_kit.export.gguf.architectures import Plan, planned
from dedloc_kit.export.gguf.modelfile import modelfile
from dedloc_kit.export.gguf.vocabulary import Vocabulary, read_vocabulary
from dedloc_kit.export.gguf.weights import Kind

MODELFILE = "Modelfile"
_FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


def write_gguf(folder: Path, out: Path, kind: Kind) -> None:
    """Write a model of transformers as one GGUF file, and a `Modelfile` for ollama beside it.

    Memory: some tens of megabytes beyond the tokenizer, however large the model is.

    :param folder: config.json, safetensors, tokenizer and, where there are such, chat template and generation config
    :param out: what is there is replaced once the new file is whole
    :param kind: how matrices are stored; vectors stay in float32

    Raises UserError if the folder is damaged, llama.cpp does not compute exactly this model or would read other
    tokens, a number does not fit the kind, or the file cannot be written.
    """
    values = config.read_config(folder)
    with weights.opened(folder) as stored:
        plan = planned(values, folder, stored.shapes.keys())
        stored.check(plan.tensors, set(plan.ignored))
        vocabulary = read_vocabulary(folder, int(plan.values["vocab_size"]))
        unfinished, beside = (path.with_name(f".{path.name}.part") for path in (out, out.with_name(MODELFILE)))
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            _require_room(out, plan, kind)
            _write(unfinished, plan, vocabulary, stored, kind)
            beside.write_text(modelfile(out.name, plan, vocabulary), encoding="utf-8")
            os.replace(unfinished, out)
            os.replace(beside, out.with_name(MODELFILE))
        except OSError as error:
            raise UserError(f"{out} cannot be written ({error.strerror or error}); choose another place") from None
        finally:
            for path in (unfinished, beside):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _require_room(out: Path, plan: Plan, kind: Kind) -> None:
    needed = sum(tensor.bytes(kind) for tensor in plan.tensors)
    if shutil.disk_usage(out.parent).free < needed:
        raise OSError(errno.ENOSPC, f"the disk is full: {needed / 1e9:.1f} GB are needed")


def _write(path: Path, plan: Plan, vocabulary: Vocabulary, stored: weights.Weights, kind: Kind) -> None:
    writer = gguf.GGUFWriter(path, plan.architecture)
    try:
        _describe(writer, plan, vocabulary, kind)
        for name, vector in plan.computed.items():
            writer.add_tensor_info(name, vector.shape, vector.dtype, vector.nbytes)
        for tensor in plan.tensors:
            size = tensor.bytes(kind)
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, tensor.type(kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        file = writer.fout[0]
        writer.write_padding(file, file.tell())
        for vector in plan.computed.values():
            file.write(vector.astype("<f4").tobytes())
            writer.write_padding(file, vector.nbytes)
        for tensor in plan.tensors:
            for part in stored.encoded(tensor, kind):
                file.write(part)
            writer.write_padding(file, tensor.bytes(kind))
        file.flush()
        os.fsync(file.fileno())
    finally:
        writer.close()


def _describe(writer: gguf.GGUFWriter, plan: Plan, vocabulary: Vocabulary, kind: Kind) -> None:
    """The keys of the file."""
    writer.add_type("model")
    writer.add_file_type(int(_FILE_TYPES[kind]))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, value in plan.values.items():
        key = f"{plan.architecture}.{name}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.split)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    for name, number in vocabulary.special.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    for name, adds in vocabulary.adds.items():
        writer.add_bool(f"tokenizer.ggml.add_{name}_token", adds)
    if vocabulary.chat_template:
        writer.add_chat_template(vocabulary.chat_template)
