"""Models of the hub: the real loading code, on tiny models that these tests save."""

import json

import numpy as np
import pytest

from fedgram.core.errors import CannotLoad, InvalidParameter
from fedgram.features import backbone
from fedgram.features.backbones.named_backbones import hub
from fedgram.features.backbones.onnxmodel import Preparation

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
DECODER = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}


def models():
    resnet = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return {
        "mae": transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**VIT, **DECODER)),
        "vit": transformers.ViTForImageClassification(transformers.ViTConfig(**VIT)),
        "resnet": transformers.ResNetForImageClassification(resnet),
    }


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A folder with the models as `save_pretrained` leaves them, and the models."""
    torch.manual_seed(0)
    folder, made = tmp_path_factory.mktemp("hub"), models()
    transformers.utils.logging.disable_progress_bar()
    for name, model in made.items():
        model.eval().save_pretrained(folder / name)
    processor = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder, made


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def images():
    from sklearn.datasets import load_digits

    return np.kron(load_digits().images[:6].astype(np.uint8) * 15, np.ones((4, 4), dtype=np.uint8))


def close(mine, theirs):
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def prepared(images, mean, std):
    return torch.from_numpy(Preparation(32, mean, std)(images))


def test_vit_gives_its_class_token(saved, images, cache):
    folder, made = saved
    mine = backbone(f"hub:{folder / 'vit'}", cache=cache)
    assert mine.prepare == Preparation(32, (0.5,) * 3, (0.25,) * 3)  # of preprocessor_config.json
    with torch.no_grad():
        states = made["vit"].vit(prepared(images, (0.5,) * 3, (0.25,) * 3)).last_hidden_state.numpy()
    close(mine(images), states[:, 0])
    close(hub(str(folder / "vit"), pool="mean", device="cpu")(images), states[:, 1:].mean(1))
    assert mine.name == "vit"


def test_resnet_gives_averaged_maps(saved, images, cache):
    folder, made = saved
    mine = backbone(f"hub:{folder / 'resnet'}:32", cache=cache)
    with torch.no_grad():
        pixels = prepared(images, mine.prepare.mean, mine.prepare.std)
        out = made["resnet"].resnet(pixels, output_hidden_states=True)
    close(mine(images), out.pooler_output.flatten(1).numpy())
    both = backbone(f"hub:{folder / 'resnet'}:32:0,last", device="cpu")(images)
    close(both, np.concatenate([out.hidden_states[1].mean((2, 3)), out.last_hidden_state.mean((2, 3))], axis=1))


def test_masked_autoencoder_sees_every_patch_and_no_chance(saved, images, cache):
    folder, made = saved
    mine = backbone(f"hub:{folder / 'mae'}", cache=cache)
    features = mine(images)
    np.testing.assert_array_equal(features, mine(images))
    eager = hub(str(folder / "mae"), device="cpu")
    torch.manual_seed(1)
    first = eager(images)
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, eager(images))
    close(features, first)
    # By hand: patches with their positions, the class token, the encoder; nothing left out.
    vit = made["mae"].vit
    with torch.no_grad():
        embeddings = vit.embeddings
        pixels = prepared(images, mine.prepare.mean, mine.prepare.std)
        patches = embeddings.patch_embeddings(pixels) + embeddings.position_embeddings[:, 1:]
        token = (embeddings.cls_token + embeddings.position_embeddings[:, :1]).expand(len(images), -1, -1)
        states = torch.cat([token, patches], dim=1)
        for layer in vit.layers if hasattr(vit, "layers") else vit.encoder.layer:
            out = layer(states)
            states = out[0] if isinstance(out, tuple) else out
        close(features, vit.layernorm(states)[:, 1:].mean(1).numpy())


@pytest.mark.parametrize("name", ["mae", "vit"])
def test_another_input_size(saved, images, name):
    features = hub(str(saved[0] / name), size=48, layers=[0, 1, -1], device="cpu")(images)
    assert features.shape == (6, 96)
    assert np.isfinite(features).all()


def test_fingerprint_follows_the_weights(saved, tmp_path):
    folder, _ = saved
    before = hub(str(folder / "resnet")).fingerprint
    assert before == hub(str(folder / "resnet"), device="cpu", batch=2).fingerprint
    assert before != hub(str(folder / "resnet"), size=64).fingerprint
    changed = models()["resnet"]
    changed.save_pretrained(tmp_path / "resnet")
    assert before != hub(str(tmp_path / "resnet")).fingerprint


def test_a_model_with_missing_weights_is_refused(saved, images, tmp_path):
    from safetensors.torch import load_file, save_file

    made = models()["resnet"]
    made.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    key = next(key for key in weights if "encoder" in key and key.endswith("convolution.weight"))
    del weights[key]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CannotLoad, match="lacks 1 weights"):
        hub(str(tmp_path), size=32, device="cpu")(images)


def test_what_is_not_there_is_told_in_one_line(saved, images, tmp_path):
    with pytest.raises(CannotLoad, match="nobody/no-such-model") as told:
        backbone("hub:nobody/no-such-model")
    assert "\n" not in str(told.value)
    with pytest.raises(CannotLoad, match=r"no config\.json"):
        backbone(f"hub:{tmp_path}")
    with pytest.raises(InvalidParameter, match="no class token"):
        hub(str(saved[0] / "resnet"), pool="class", device="cpu")(images)
    with pytest.raises(InvalidParameter, match="pool 'max'"):
        hub(str(saved[0] / "resnet"), pool="max")


def test_code_that_lies_in_a_folder_is_never_run(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda *prompt: asked.append(prompt) or "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "evil"
    folder.mkdir()
    names = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass EvilConfig: ...\nclass EvilModel: ..."
    )
    (folder / "model.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(CannotLoad, match="cannot load the model in evil"):
        hub(str(folder), device="cpu")(np.zeros((1, 32, 32, 3), dtype=np.uint8))
    assert not asked
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("said", ["FEDGRAM_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_means_that_no_network_is_tried(monkeypatch, tmp_path, said):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv(said, "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it was read when the library was loaded
    tried = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: tried.append(host) or [])
    with pytest.raises(CannotLoad, match=f"'nobody/nothing': it is not in the hub's cache, and {said} is set"):
        backbone("hub:nobody/nothing")
    assert tried == []
