"""Writes a model folder in Hugging Face layout, and the data that goes with it."""

import gzip
import json
from pathlib import Path

import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from . import data, golden, grammar
from .model import Config, Decoder
from .tokens import BOS, END


EXACT = ("norm", "field_proj", "level_proj", "slope", "bias")


def _kept_exact(name):
    return any(part in name for part in EXACT)


def rounded(name, value):
    """Matrices hold numbers that half precision has, so an F16 file loses nothing."""
    return value if _kept_exact(name) else value.half().float()


def tensors(model):
    """Tensors by their checkpoint names, float32; slopes are written as they act."""
    out = {}
    for name, value in model.state_dict().items():
        if name.endswith("slope_raw"):
            continue
        name = name if name == "lm_head.weight" else "model." + name
        out[name] = rounded(name, value.detach().float().contiguous())
    if model.config.field_kind != "none":
        for n, block in enumerate(model.layers):
            out[f"model.layers.{n}.self_attn.slope"] = block.self_attn.slope().detach().float().contiguous()
    return out


def load(folder):
    """The Decoder of an exported folder; slopes come back through the inverse softplus."""
    folder = Path(folder)
    told = json.loads((folder / "config.json").read_text())
    config = Config(**{key: told[key] for key in Config.__dataclass_fields__ if key in told})
    model = Decoder(config)
    state = {}
    for name, value in load_file(folder / "model.safetensors").items():
        name, value = name.removeprefix("model."), value.float()
        if name.endswith("self_attn.slope"):
            name, value = name + "_raw", value + torch.log(-torch.expm1(-value))
        state[name] = value
    model.load_state_dict(state)
    return model


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_model(folder, model, tokenizer, half=False):
    """config.json, generation_config.json, tokenizer files and model.safetensors; with half
    the matrices as float16, which loses nothing."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", model.config.checkpoint())
    write_json(folder / "generation_config.json",
               {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False, "temperature": 0.0})
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": END,
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False})
    told = tensors(model)
    if half:
        told = {name: value if _kept_exact(name) else value.half() for name, value in told.items()}
    save_file(told, folder / "model.safetensors", metadata={"format": "pt"})


def write_evaluation(path, tokenizer, task, factors, count=50, seed=0):
    """Prompts and answers as gzip'd JSON lines, the same bytes at every run."""
    pieces = data.Pieces(tokenizer)
    lines = []
    for factor in factors:
        length = factor * data.TRAINING_LENGTH
        for n in range(count):
            sample = data.evaluation_sample(seed, pieces, task, length, n, count)
            lines.append(json.dumps({
                "prompt": sample.prompt, "answer": grammar.answer(sample.number), "length": length,
                "factor": factor, "depth": round(sample.depth, 4), "task": task}))
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(("\n".join(lines) + "\n").encode())


def write_prompts(folder, tokenizer, factors=(1, 8, 64), seed=1):
    """prompt-Nx.txt (no newline at the end: the answer starts right there), prompts.json."""
    folder, pieces, told = Path(folder), data.Pieces(tokenizer), {}
    for factor in factors:
        length = factor * data.TRAINING_LENGTH
        # Key two of five: a third of the way in.
        sample = data.evaluation_sample(seed, pieces, "three", length, 1, 4)
        name = f"prompt-{factor}x.txt"
        (folder / name).write_text(sample.prompt)
        told[name] = {"answer": grammar.answer(sample.number), "tokens": len(sample.ids),
                      "factor": factor, "depth": round(sample.depth, 4)}
    write_json(folder / "prompts.json", told)


def write_goldens(folder, tokenizer, seed=2):
    """golden.safetensors over a text of the hard task, 2048 tokens long with its answer."""
    folder, pieces = Path(folder), data.Pieces(tokenizer)
    sample = data.evaluation_sample(seed, pieces, "three", max(golden.LENGTHS), 1, 4)
    ids = sample.ids + pieces.ids(grammar.answer(sample.number), first=True) + [1]
    config = json.loads((folder / "config.json").read_text())
    save_arrays(golden.goldens(folder / "model.safetensors", config, ids),
                folder / "golden.safetensors", metadata={"format": "pt"})
