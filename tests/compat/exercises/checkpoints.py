"""Exercises of `RestClient` on checkpoints."""

from __future__ import annotations

import datetime

from compat.exercises.registry import proves
from compat.world import World


@proves("RestClient.list_checkpoints")
def _(w: World) -> None:
    path = w.state_path
    found = w.rest.list_checkpoints(w.training.model_id).result().checkpoints
    (kept,) = [checkpoint for checkpoint in found if checkpoint.tinker_path == path]
    assert (kept.checkpoint_type, kept.checkpoint_id) == ("training", "weights/kept")
    assert kept.size_bytes > 0


@proves("RestClient.list_checkpoints_async")
def _(w: World) -> None:
    path = w.sampler_path()
    found = w.run(w.rest.list_checkpoints_async(w.training.model_id)).checkpoints
    assert path in [checkpoint.tinker_path for checkpoint in found]


@proves("RestClient.list_user_checkpoints")
def _(w: World) -> None:
    path = w.fresh_state_path()
    page = w.rest.list_user_checkpoints(limit=1).result()
    assert [checkpoint.tinker_path for checkpoint in page.checkpoints] == [path]
    assert page.cursor.total_count >= 1


@proves("RestClient.list_user_checkpoints_async")
def _(w: World) -> None:
    path = w.fresh_state_path()
    page = w.run(w.rest.list_user_checkpoints_async(limit=1000))
    assert path in [checkpoint.tinker_path for checkpoint in page.checkpoints]


@proves("RestClient.get_weights_info_by_tinker_path")
def _(w: World) -> None:
    info = w.rest.get_weights_info_by_tinker_path(w.state_path).result()
    assert (info.base_model, info.lora_rank, info.train_mlp) == (w.base_model, 4, True)


@proves("RestClient.get_external_weights_urls")
def _(w: World) -> None:
    found = w.rest.get_external_weights_urls(w.external_path()).result()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(found.urls)
    assert found.expires > datetime.datetime.now(datetime.UTC)
    assert b'"r"' in w.fetch(found.urls["adapter_config.json"])


@proves("RestClient.get_external_weights_urls_async")
def _(w: World) -> None:
    assert w.run(w.rest.get_external_weights_urls_async(w.external_path())).urls


@proves("RestClient.delete_checkpoint")
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.rest.delete_checkpoint(w.training.model_id, path.split("/", 3)[3]).result()
    w.assert_gone(path)


@proves("RestClient.delete_checkpoint_async")
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.run(w.rest.delete_checkpoint_async(w.training.model_id, path.split("/", 3)[3]))
    w.assert_gone(path)


@proves("RestClient.delete_checkpoint_from_tinker_path")
def _(w: World) -> None:
    path = w.sampler_path()
    w.rest.delete_checkpoint_from_tinker_path(path).result()
    w.assert_gone(path)


@proves("RestClient.delete_checkpoint_from_tinker_path_async")
def _(w: World) -> None:
    path = w.external_path()
    w.run(w.rest.delete_checkpoint_from_tinker_path_async(path))
    w.assert_gone(path)


@proves(
    "RestClient.publish_checkpoint_from_tinker_path",
    "RestClient.unpublish_checkpoint_from_tinker_path",
)
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.rest.publish_checkpoint_from_tinker_path(path).result()
    assert w.checkpoint(path).public
    w.rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not w.checkpoint(path).public


@proves(
    "RestClient.publish_checkpoint_from_tinker_path_async",
    "RestClient.unpublish_checkpoint_from_tinker_path_async",
)
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.run(w.rest.publish_checkpoint_from_tinker_path_async(path))
    assert w.checkpoint(path).public
    w.run(w.rest.unpublish_checkpoint_from_tinker_path_async(path))
    assert not w.checkpoint(path).public


@proves("RestClient.set_checkpoint_ttl_from_tinker_path")
def _(w: World) -> None:
    path = w.fresh_state_path()
    assert w.checkpoint(path).expires_at is not None
    w.rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert w.checkpoint(path).expires_at is None


@proves("RestClient.set_checkpoint_ttl_from_tinker_path_async")
def _(w: World) -> None:
    path = w.fresh_state_path()
    w.run(w.rest.set_checkpoint_ttl_from_tinker_path_async(path, 86_400))
    left = w.checkpoint(path).expires_at - datetime.datetime.now(datetime.UTC)
    assert 86_000 < left.total_seconds() <= 86_400


@proves("RestClient.copy_weights")
def _(w: World) -> None:
    path = w.rest.copy_weights(w.state_path, "project-1", ttl_seconds=3600).result()
    assert w.rest.get_training_run_by_tinker_path(path).result().lora_rank == 4


@proves("RestClient.copy_weights_async")
def _(w: World) -> None:
    path = w.run(w.rest.copy_weights_async(w.state_path))
    client = w.service.create_training_client_from_state(path)
    original = w.service.create_training_client_from_state(w.state_path)
    assert w.training_logprobs(client) == w.training_logprobs(original)
