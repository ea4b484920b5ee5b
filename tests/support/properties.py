"""How hypothesis runs here: bounded examples, and no deadline, since the machine is shared."""

from hypothesis import settings


def use_project_profile() -> None:
    settings.register_profile("tinkex", deadline=None, max_examples=60)
    settings.load_profile("tinkex")
