"""Tokenizers: what they do, where they come from, and that being offline never hangs."""

import copy
import inspect
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinkex
from support.clients import service_for
from support.protocol_server import ProtocolServer
from support.socket_server import Answer, Reply
from tinkex.client import tokenizer as tokenizers_module
from tinkex.client.tokenizer import tokenizer_for, tokenizer_id_for
from tinkex.text.light_tokenizer import Tokenizer

REAL_WANTED = tokenizers_module._wanted
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_files(folder: Path) -> Path:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": {"__type": "AddedToken", "content": "<|end|>"},
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tok")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tokenizers_module, "_cache", {})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(tokenizers_module, "_wanted", lambda kind: "light")


def test_text_survives_a_round_trip(folder: Path) -> None:
    tokenizer = Tokenizer(folder, "t")
    text = "Grüße, 世界 \n\t!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tinkex.ModelInput.from_text("hi", tokenizer).to_ints() == tokenizer.encode("hi")
    assert tokenizer("ab")["attention_mask"] == [1, 1]
    assert tokenizer.batch_decode([tokenizer.encode("a"), tokenizer.encode("b")]) == ["a", "b"]


def test_special_tokens_and_vocabulary(folder: Path) -> None:
    tokenizer = Tokenizer(folder, "t")
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.eos_token_id == 256
    assert tokenizer.bos_token is None
    assert tokenizer.bos_token_id is None
    assert len(tokenizer) == 257
    assert tokenizer.convert_tokens_to_ids("<|end|>") == 256
    assert tokenizer.convert_ids_to_tokens([256]) == ["<|end|>"]
    assert tokenizer.all_special_ids == [256]
    ids = [*tokenizer.encode("a"), 256]
    assert tokenizer.decode(ids) == "a<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"


def test_chat_templates_render_like_those_of_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end|>"
    )
    messages = [{"role": "user", "content": "<b>hi</b>"}, {"role": "assistant", "content": "x"}]
    ours = Tokenizer(folder, "t")
    for generation in (False, True):
        options: Any = {"add_generation_prompt": generation, "chat_template": TEMPLATE}
        expected = theirs.apply_chat_template(messages, tokenize=False, **options)
        assert ours.apply_chat_template(messages, tokenize=False, **options) == expected
    text = ours.apply_chat_template(messages, tokenize=False)
    ids = ours.encode(text, add_special_tokens=False)
    assert ours.apply_chat_template(messages)["input_ids"] == ids
    assert ours.apply_chat_template(messages, return_dict=False) == ids


MESSAGES = [{"role": "user", "content": "hi"}]
USES: dict[str, Any] = {
    "attributes of a call": lambda t: (t("ab").input_ids, t(["a", "bc"]).input_ids),
    "tensors": lambda t: t("ab", return_tensors="pt").input_ids.shape,
    "encoded tensors": lambda t: t.encode("ab", return_tensors="pt").shape,
    "padding": lambda t: t(["abc", "d"], padding=True).input_ids,
    "truncation": lambda t: t("abcdef", truncation=True, max_length=2)["input_ids"],
    "offsets": lambda t: t("ab", return_offsets_mapping=True)["offset_mapping"],
    "pairs": lambda t: t.encode("a", "b"),
    "special tokens as text": lambda t: t.encode("<|end|>", split_special_tokens=True),
    "tokenize": lambda t: t.tokenize("a b"),
    "rows": lambda t: t.decode([[65], [66]]),
    "an array": lambda t: t.decode(np.array([65, 66])),
    "settings": lambda t: (t.padding_side, t.is_fast, t.sep_token, t.vocab["a"]),
    "a chat": lambda t: dict(t.apply_chat_template(MESSAGES)),
    "a chat's attributes": lambda t: t.apply_chat_template(MESSAGES).input_ids,
    "a chat to be continued": lambda t: dict(
        t.apply_chat_template(MESSAGES, continue_final_message=True)
    ),
    "a chat's ids to be continued": lambda t: t.apply_chat_template(
        MESSAGES, continue_final_message=True, return_dict=False
    ),
    "a chat's ids": lambda t: list(t.apply_chat_template(MESSAGES, return_dict=False)),
    "a chat as a dictionary": lambda t: dict(t.apply_chat_template(MESSAGES, return_dict=True)),
    "a chat in tensors": lambda t: (
        t.apply_chat_template(MESSAGES, return_tensors="pt", return_dict=True)["input_ids"].shape
    ),
    "several chats": lambda t: t.apply_chat_template([MESSAGES, MESSAGES], tokenize=False),
}


@pytest.mark.parametrize("use", list(USES))
def test_code_for_the_tokenizers_of_transformers_runs_on_the_light_one(
    folder: Path, use: str
) -> None:
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(str(folder))
    ours = Tokenizer(folder, "t")
    for tokenizer in (theirs, ours):
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "left"
    assert USES[use](ours) == USES[use](theirs)


def test_a_chats_parameters_are_those_of_transformers(folder: Path) -> None:
    theirs = pytest.importorskip("transformers").PreTrainedTokenizerFast.apply_chat_template
    ours = inspect.signature(Tokenizer.apply_chat_template).parameters
    wanted = [(p.name, p.default) for p in inspect.signature(theirs).parameters.values()]
    assert [(p.name, p.default) for p in ours.values()][:-1] == wanted[:-1]


def test_changed_special_tokens_are_kept(folder: Path) -> None:
    tokenizer = Tokenizer(folder, "t")
    tokenizer.pad_token_id = tokenizer.eos_token_id
    assert tokenizer.pad_token == tokenizer.special_tokens_map["pad_token"] == "<|end|>"
    again = pickle.loads(pickle.dumps(copy.deepcopy(tokenizer)))
    assert (again.pad_token, again.encode("a")) == ("<|end|>", tokenizer.encode("a"))


def test_what_needs_transformers_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    tokenizer = Tokenizer(folder, "t")
    with pytest.raises(tinkex.client.errors.TokenizerError, match="pip install transformers"):
        tokenizer("a", return_tensors="pt")
    with pytest.raises(AttributeError, match="pip install transformers"):
        tokenizer.padding_side  # noqa: B018 - looking is what fails
    assert not hasattr(tokenizer, "save_pretrained")


def test_a_template_can_refuse(folder: Path) -> None:
    with pytest.raises(tinkex.client.errors.TokenizerError, match="no system"):
        Tokenizer(folder, "t").apply_chat_template(
            [], chat_template="{{ raise_exception('no system') }}"
        )


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        ("org/model:v2", None, "org/model"),
        ("org/model/variant", None, "org/model"),
        ("meta-llama/Llama-3.1-8B", None, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"),
        ("org/model", "other/tok", "other/tok"),
    ],
)
def test_which_tokenizer_belongs_to_a_model(model: str, given: str | None, expected: str) -> None:
    assert tokenizer_id_for(model, given) == expected


# ---- where the files come from


@pytest.fixture
def server():
    with ProtocolServer() as running:
        yield running


def load(server: ProtocolServer, tmp_path: Path, name: str | None, **options: Any) -> Any:
    with service_for(server, cache_directory=tmp_path / "cache", **options) as service:
        service.get_server_capabilities()
        return tokenizer_for("acme/tiny", name, service._get_rest_holder())


def test_a_folder_is_used_without_any_request(
    server: ProtocolServer, tmp_path: Path, folder: Path
) -> None:
    tokenizer = load(server, tmp_path, str(folder))
    assert tokenizer.encode("a")
    assert not [r for r in server.requests if "tokenizer" in r.path]


def test_the_hugging_face_cache_is_read(server: ProtocolServer, tmp_path: Path) -> None:
    write_files(tmp_path / "hf" / "models--acme--tiny" / "snapshots" / "abc")
    assert load(server, tmp_path, None, offline=True).name_or_path == "acme/tiny"
    assert not [r for r in server.requests if "tokenizer" in r.path]


def serve_files(server: ProtocolServer, folder: Path, prefix: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        server.fail(f"{prefix}/{name}", Answer(Reply(200, (folder / name).read_bytes())))


def test_the_server_is_asked_once_and_then_the_cache(
    server: ProtocolServer, tmp_path: Path, folder: Path
) -> None:
    there = json.dumps({"files": ["tokenizer.json", "tokenizer_config.json"]})
    server.fail("/models/acme/tiny/tokenizer", Answer(Reply(200, there.encode())))
    serve_files(server, folder, "/models/acme/tiny/tokenizer")
    first = load(server, tmp_path, "/folder/on/the/server", offline=True)
    assert first.eos_token == "<|end|>"
    asked = len([r for r in server.requests if "/tokenizer" in r.path])
    assert asked == 3, "the list, and the files on it: a file it does not have is a line in its log"
    tokenizers_module._cache.clear()
    assert load(server, tmp_path, "/folder/on/the/server", offline=True).encode("a")
    assert len([r for r in server.requests if "/tokenizer" in r.path]) == asked


def test_the_hub_comes_last(server: ProtocolServer, tmp_path: Path, folder: Path) -> None:
    serve_files(server, folder, "/acme/tok/resolve/main")
    tokenizer = load(server, tmp_path, "acme/tok", hub_url=server.url, hub_token="hf-secret")
    assert tokenizer.encode("a")
    hub = next(r for r in server.requests if "/resolve/" in r.path)
    assert hub.headers["authorization"] == "Bearer hf-secret"
    assert "x-api-key" not in hub.headers


@pytest.mark.parametrize("offline", [True, False], ids=["told so", "unreachable"])
def test_a_tokenizer_that_cannot_be_found_is_a_user_error(
    server: ProtocolServer, tmp_path: Path, offline: bool
) -> None:
    with pytest.raises(tinkex.client.errors.TokenizerError, match="acme/none") as caught:
        load(server, tmp_path, "acme/none", offline=offline, hub_url="http://127.0.0.1:9")
    assert caught.value.is_user_error
    for place in ("our cache", "Hugging Face cache", "the server", "hub"):
        assert place in str(caught.value)


def test_damaged_files_are_explained(server: ProtocolServer, tmp_path: Path, folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(tinkex.client.errors.TokenizerError, match="cannot be read"):
        load(server, tmp_path, str(folder))


def test_programs_with_transformers_get_its_class(
    server: ProtocolServer, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(tokenizers_module, "_wanted", REAL_WANTED)
    assert "transformers" in sys.modules
    loaded = load(server, tmp_path, str(folder))
    assert isinstance(loaded, transformers.PreTrainedTokenizerBase)
    assert loaded.encode("a") == Tokenizer(folder, "t").encode("a")


def test_first_party_tokenizers_are_explained(server: ProtocolServer, tmp_path: Path) -> None:
    with pytest.raises(tinkex.client.errors.TokenizerError, match="not public"):
        load(server, tmp_path, "TML/x")


def test_clients_load_the_tokenizer_the_server_names(
    server: ProtocolServer, tmp_path: Path
) -> None:
    write_files(tmp_path / "hf" / "models--acme--tok" / "snapshots" / "abc")
    config = service_for(server, cache_directory=tmp_path / "cache", offline=True).config
    with tinkex.ServiceClient.from_config(replace(config)) as service:
        training = service.create_lora_training_client("acme/tiny")
        assert training.get_info().model_data.tokenizer_id == "acme/tok"
        assert training.get_tokenizer().encode("a")
        write_files(tmp_path / "hf" / "models--acme--tiny" / "snapshots" / "abc")
        assert service.create_sampling_client(base_model="x").get_tokenizer().encode("a")
