"""The Hugging Face Hub, as far as `push-hf` needs it. The Hub's library is imported when used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkex.cli.errors import CliError
from tinkex.cli.outside.model_card import tinker_path_in


class Hub:
    """A logged-in user's view of the Hub."""

    def __init__(self) -> None:
        try:
            import huggingface_hub
        except ImportError as error:
            raise CliError(
                "huggingface_hub is required for this command.",
                next_step="Next: pip install huggingface_hub",
            ) from error
        self._api: Any = huggingface_hub.HfApi()

    def require_login(self) -> None:
        """Raises `CliError` unless the Hub knows the user."""
        try:
            self._api.whoami()
        except Exception as error:
            raise CliError(
                "Not logged in", f"Details: {error}", "Next: hf auth login, or set HF_TOKEN"
            ) from error

    def create(self, repo: str, private: bool) -> str:
        """Makes the repository if there is none; returns its full name."""
        return str(self._api.create_repo(repo, private=private, exist_ok=True).repo_id)

    def tinker_path(self, repo: str, revision: str | None) -> str | None:
        """The checkpoint that the repository's card names, if it has a card."""
        try:
            path = self._api.hf_hub_download(repo, "README.md", revision=revision)
        except Exception:
            return None  # no card, or no such branch yet
        return tinker_path_in(Path(path).read_text(encoding="utf-8"))

    def upload(self, repo: str, folder: Path, revision: str | None, **options: Any) -> None:
        """Uploads the folder's files in one commit."""
        if revision is not None:
            self._api.create_branch(repo, branch=revision, exist_ok=True)
        self._api.upload_folder(repo_id=repo, folder_path=folder, revision=revision, **options)
