"""Exercises of `RestClient` on training runs."""

from __future__ import annotations

from compat.exercises.registry import proves
from compat.world import World


@proves("RestClient.get_training_run")
def _(w: World) -> None:
    run = w.rest.get_training_run(w.training.model_id).result()
    assert (run.base_model, run.lora_rank, run.is_lora) == (w.base_model, 4, True)
    assert run.user_metadata == {"purpose": "compat"}


@proves("RestClient.get_training_run_async")
def _(w: World) -> None:
    run = w.run(w.rest.get_training_run_async(w.training.model_id, access_scope="accessible"))
    assert run.training_run_id == w.training.model_id


@proves("RestClient.get_training_run_by_tinker_path")
def _(w: World) -> None:
    run = w.rest.get_training_run_by_tinker_path(w.state_path).result()
    assert run.last_checkpoint is not None


@proves("RestClient.get_training_run_by_tinker_path_async")
def _(w: World) -> None:
    run = w.run(w.rest.get_training_run_by_tinker_path_async(w.state_path))
    assert run.training_run_id == w.training.model_id


@proves("RestClient.list_training_runs")
def _(w: World) -> None:
    assert w.training.model_id
    page = w.rest.list_training_runs(limit=1, offset=0).result()
    assert len(page.training_runs) == 1
    assert page.cursor.total_count >= 1


@proves("RestClient.list_training_runs_async")
def _(w: World) -> None:
    page = w.run(w.rest.list_training_runs_async(limit=100))
    assert w.training.model_id in [run.training_run_id for run in page.training_runs]
