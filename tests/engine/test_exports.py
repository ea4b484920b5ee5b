"""Exported checkpoints compute what the run computes, in the libraries that read them.

Loaded in the wrong way an adapter is silently dropped, so each also must differ from its base.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from support.hf_models import save_packed_gpt_oss, save_reference
from support.sampling import tiny_folder
from support.training import call, random_datum, train
from tinkex.engine.adapters.layout import AdapterLayout, AdapterWeights
from tinkex.engine.adapters.peft_files import read_adapter, write_adapter
from tinkex.engine.errors import UserError
from tinkex.engine.exports.export import export
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.headers import read_config
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

TINY = ["tinkex/tiny-llama", "tinkex/tiny-qwen3-moe", "tinkex/tiny-qwen3.5", "tinkex/tiny-gpt-oss"]
# PEFT looks for these keys among modules alone, and says so; it does use them for parameters.
UNTRUE = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")
DATUM = random_datum(np.random.default_rng(0), 40)
RANK = 4


def our_logprobs(folder: Path, adapter: Path | None = None) -> NDArray[np.float32]:
    trainer = Trainer(load_decoder(folder))
    trainer.create_run(CreateRun("op", "run", LoraSpec(RANK, seed=1, train_unembed=True)))
    if adapter is not None:  # else a fresh one, which adds nothing
        trainer._find("run").adapter.load(read_adapter(adapter))
    (result,) = train(trainer, call("run", DATUM, forward_only=True))
    return np.asarray(result.outputs[0]["logprobs"])


def their_logprobs(model: Any) -> NDArray[np.float32]:
    targets = torch.from_numpy(np.asarray(DATUM.inputs["target_tokens"]))[:, None]
    with torch.no_grad():
        logits = model(torch.from_numpy(DATUM.tokens.astype(np.int64))[None]).logits[0]
    found: NDArray[np.float32] = logits.log_softmax(-1).gather(1, targets)[:, 0].numpy()
    return found


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def exported(archive: Path, base: Path, layout: str, folder: Path) -> int | None:
    folder.mkdir()
    return export(archive, base, "org/base", layout, folder)


def random_adapter(base: Path, folder: Path, **parts: bool) -> Path:
    """On all modules but those switched off."""
    layout = AdapterLayout(read_config(base), LoraSpec(RANK, **{"train_unembed": True, **parts}))
    flat = torch.randn(layout.size, generator=torch.Generator().manual_seed(3)) * 0.1
    folder.mkdir()
    write_adapter(AdapterWeights(RANK, layout.scaling, layout.modules(flat)), folder)
    return folder


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@UNTRUE
@pytest.mark.parametrize("model", [*TINY, "phi3", "qwen3.5-moe"])
@pytest.mark.parametrize("layout", ["peft", "merged"])
def test_transformers_and_peft_compute_what_the_run_computes(
    model: str, layout: str, tmp_path: Path
) -> None:
    base = reference_base(model, tmp_path / "base")
    archive = random_adapter(base, tmp_path / "archive")
    exported(archive, base, layout, tmp_path / "out")
    ours, plain = our_logprobs(base, archive), load(base)
    assert np.abs(their_logprobs(plain) - ours).max() > 0.1, "the adapter changes nothing"
    if layout == "peft":
        theirs = their_logprobs(PeftModel.from_pretrained(plain, str(tmp_path / "out")))
    else:
        theirs = their_logprobs(load(tmp_path / "out"))
    np.testing.assert_allclose(theirs, ours, atol=1e-3)


@UNTRUE
def test_modules_by_expert_are_read_by_peft(tmp_path: Path) -> None:
    base = tiny_folder("tinkex/tiny-qwen3-moe")
    archive = random_adapter(base, tmp_path / "archive")
    exported(archive, base, "peft-experts", tmp_path / "out")
    theirs = their_logprobs(PeftModel.from_pretrained(load(base), str(tmp_path / "out")))
    np.testing.assert_allclose(theirs, our_logprobs(base, archive), atol=1e-3)


class Reader:
    """Adds an exported adapter to a transformers model by the arithmetic of vLLM's loader: factors
    of experts lie flat (A by expert then rank, B by rank then expert) or in a module an expert."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.tensors = load_file(folder / "adapter_model.safetensors")
        self.config = json.loads((folder / "adapter_config.json").read_text())
        self.prefix = prefix
        self.read: set[str] = set()

    def add_to(self, model: Any) -> Any:
        for name in self.tensors:
            if name.endswith(".lora_A.weight"):
                self._add(model, name.removesuffix(".lora_A.weight"))
        assert self.read == set(self.tensors), "some factors were not read"
        return model

    def _add(self, model: Any, stem: str) -> None:
        a, b = (self.tensors[f"{stem}.lora_{side}.weight"] for side in "AB")
        self.read |= {f"{stem}.lora_{side}.weight" for side in "AB"}
        path = stem.removeprefix("base_model.model.").replace(f"{self.prefix}.", "model.", 1)
        found = re.fullmatch(r"(.+\.mlp\.experts)(\.base_layer|\.(\d+)\.(\w+))?", path)
        scaling = self._scaling(path)
        if found is None:
            model.get_submodule(path).weight.data += scaling * (b @ a)
            return
        experts = model.get_submodule(found[1])
        if found[3] is None:
            self._add_flat(experts, "gate_up_proj" if found[2] else "down_proj", a, b, scaling)
        else:
            self._matrix(experts, int(found[3]), found[4]).add_(scaling * (b @ a))

    def _add_flat(self, experts: Any, name: str, a: Any, b: Any, scaling: float) -> None:
        stack = getattr(experts, name).data
        count = len(stack)
        factors = a.reshape(count, -1, a.shape[-1]), b.reshape(len(b), -1, count).permute(2, 0, 1)
        product = scaling * (factors[1] @ factors[0])
        stack += product if product.shape == stack.shape else product.mT

    def _matrix(self, experts: Any, expert: int, name: str) -> Any:
        if name == "down_proj":
            return experts.down_proj.data[expert]
        return experts.gate_up_proj.data[expert].chunk(2)[name == "up_proj"]

    def _scaling(self, path: str) -> float:
        ranks = self.config.get("rank_pattern", {})
        rank = next((r for key, r in ranks.items() if path.endswith(key)), self.config["r"])
        alphas = self.config.get("alpha_pattern", {})
        alpha = next((a for key, a in alphas.items() if path.endswith(key)), None)
        return float((alpha or self.config["lora_alpha"]) / rank)


def reference_base(name: str, folder: Path) -> Path:
    if name.startswith("tinkex/"):
        return tiny_folder(name)
    save_reference(name, folder)
    return folder


@pytest.mark.parametrize("model", [*TINY, "qwen3.5-moe"])
def test_what_vllm_reads_is_what_the_run_computes(model: str, tmp_path: Path) -> None:
    base = reference_base(model, tmp_path / "base")
    archive = random_adapter(base, tmp_path / "archive")
    rank = exported(archive, base, "vllm", tmp_path / "out")
    reader = Reader(tmp_path / "out", "model")
    assert reader.config["r"] == reader.config["lora_alpha"] == rank, "vLLM knows no patterns"
    theirs = their_logprobs(reader.add_to(load(base)))
    np.testing.assert_allclose(theirs, our_logprobs(base, archive), atol=1e-3)


def test_an_adapter_of_a_model_with_a_tower_names_its_text_part_for_vllm(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save_reference("qwen3.5-moe", base)
    text = json.loads((base / "config.json").read_text())
    tower = {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {}}
    (tmp_path / "published").mkdir()
    (tmp_path / "published/config.json").write_text(json.dumps(tower))
    archive = random_adapter(base, tmp_path / "archive")
    exported(archive, tmp_path / "published", "vllm", tmp_path / "out")
    reader = Reader(tmp_path / "out", "model.language_model")
    theirs = their_logprobs(reader.add_to(load(base)))
    np.testing.assert_allclose(theirs, our_logprobs(base, archive), atol=1e-3)


@pytest.mark.parametrize("model", ["qwen3.5-moe", "tinkex/tiny-qwen3-moe"])
def test_modules_by_expert_add_up_to_what_the_run_computes(model: str, tmp_path: Path) -> None:
    base = reference_base(model, tmp_path / "base")
    archive = random_adapter(base, tmp_path / "archive")
    exported(archive, base, "peft-experts", tmp_path / "out")
    theirs = their_logprobs(Reader(tmp_path / "out", "model").add_to(load(base)))
    np.testing.assert_allclose(theirs, our_logprobs(base, archive), atol=1e-3)


@pytest.mark.parametrize("model", ["qwen3.5-moe", "qwen3-moe-mixed", "qwen3.5-tied", "phi3"])
def test_a_merged_model_of_many_files_computes_what_the_run_computes(
    model: str, tmp_path: Path
) -> None:
    base = reference_base(model, tmp_path / "base")
    archive = random_adapter(base, tmp_path / "archive")
    exported(archive, base, "merged", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    ours = our_logprobs(base, archive)
    np.testing.assert_allclose(their_logprobs(load(tmp_path / "out")), ours, atol=1e-3)
    assert np.abs(their_logprobs(load(base)) - ours).max() > 0.1


def test_a_merged_model_keeps_every_chat_template_of_its_base(tmp_path: Path) -> None:
    base = shutil.copytree(tiny_folder(), tmp_path / "base")
    others = base / "additional_chat_templates"
    others.mkdir()
    for file in (base / "chat_template.jinja", others / "tool_use.jinja"):
        file.write_text(file.stem)
    exported(random_adapter(base, tmp_path / "archive"), base, "merged", tmp_path / "out")
    assert (tmp_path / "out/chat_template.jinja").read_text() == "chat_template"
    assert (tmp_path / "out/additional_chat_templates/tool_use.jinja").read_text() == "tool_use"


def test_experts_in_four_bits_are_merged_widened(tmp_path: Path) -> None:
    """Those an adapter does not change stay packed."""
    base = save_packed_gpt_oss(tmp_path / "base")
    archive = random_adapter(base, tmp_path / "archive")
    exported(archive, base, "merged", tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    ours = our_logprobs(base, archive)
    # Sums are rounded to bfloat16, the type of widened experts.
    np.testing.assert_allclose(our_logprobs(tmp_path / "out"), ours, atol=0.05)
    attention = random_adapter(base, tmp_path / "attention", train_mlp=False)
    exported(attention, base, "merged", tmp_path / "packed")
    assert "quantization_config" in json.loads((tmp_path / "packed/config.json").read_text())


def test_an_adapter_of_another_model_is_refused_and_says_which_module(tmp_path: Path) -> None:
    archive = random_adapter(tiny_folder("tinkex/tiny-qwen3"), tmp_path / "archive")
    with pytest.raises(UserError, match=r"not trained on this base model: mlp\.\w+ of layer 0"):
        exported(archive, tiny_folder("tinkex/tiny-qwen3-moe"), "peft", tmp_path / "out")


def test_gpt_oss_by_expert_is_refused(tmp_path: Path) -> None:
    base = tiny_folder("tinkex/tiny-gpt-oss")
    archive = random_adapter(base, tmp_path / "archive")
    with pytest.raises(UserError, match="no modules by expert"):
        exported(archive, base, "peft-experts", tmp_path / "out")


@pytest.mark.parametrize("layout", ["peft", "peft-experts"])
def test_layers_that_peft_would_drop_beside_a_mixture_are_refused(
    layout: str, tmp_path: Path
) -> None:
    base = reference_base("qwen3-moe-mixed", tmp_path / "base")
    archive = random_adapter(base, tmp_path / "archive")
    with pytest.raises(UserError, match=r"layer 0 has no experts.* export it as vllm or merged"):
        exported(archive, base, layout, tmp_path / "out")
    attention = random_adapter(base, tmp_path / "attention", train_mlp=False)
    exported(attention, base, layout, tmp_path / "of-attention")


def test_factors_that_gate_and_up_share_keep_the_rank(tmp_path: Path) -> None:
    """As archives of the hosted service have them."""
    base = tiny_folder("tinkex/tiny-qwen3-moe")
    archive = random_adapter(base, tmp_path / "archive")
    weights = read_adapter(archive)
    for (layer, module), (a, _) in weights.factors.items():
        if module == "mlp.experts.w1":
            a.copy_(weights.factors[layer, "mlp.experts.w3"][0])
    write_adapter(weights, archive)
    assert exported(archive, base, "peft", tmp_path / "out") == RANK
    theirs = their_logprobs(PeftModel.from_pretrained(load(base), str(tmp_path / "out")))
    np.testing.assert_allclose(theirs, our_logprobs(base, archive), atol=1e-3)
