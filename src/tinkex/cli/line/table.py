"""Every command, with its one-line description and where its code lives.

Help, suggestions and completion of command names read this table only, so listing commands
imports none of them. The module knows no parser and imports nothing.
"""

from __future__ import annotations


class Command:
    """A command someone can type: its words, its one line of help, and `module:attribute`."""

    __slots__ = ("aliases", "name", "summary", "target")

    def __init__(self, name: str, summary: str, target: str, aliases: tuple[str, ...] = ()) -> None:
        self.name = name
        self.summary = summary
        self.target = f"tinkex.cli.commands.{target}"
        self.aliases = aliases


class Group:
    """Commands that share a first word. `default` is what bare options are routed to."""

    __slots__ = ("commands", "default", "name", "summary")

    def __init__(
        self, name: str, summary: str, commands: tuple[Command, ...], default: str | None = None
    ) -> None:
        self.name = name
        self.summary = summary
        self.commands = {command.name: command for command in commands}
        self.default = default

    def find(self, word: str) -> Command | None:
        """The subcommand called `word`, by its name or an alias."""
        found = self.commands.get(word)
        if found is not None:
            return found
        return next((c for c in self.commands.values() if word in c.aliases), None)


_AUTH = Group(
    "auth",
    "Log in, log out, and see who you are.",
    (
        Command("login", "Store an API key as the default credential.", "auth.login:login"),
        Command("logout", "Forget the stored default credential.", "auth.logout:logout"),
        Command("status", "Check for credentials and for a live server.", "auth.status:status"),
        Command("whoami", "Show the user and organization in use.", "auth.whoami:whoami"),
    ),
)
_BILLING = Group(
    "billing",
    "See what was used and what it costs.",
    (
        Command(
            "checkpoint-storage",
            "Show the storage that checkpoints take now.",
            "billing.storage:checkpoint_storage",
        ),
        Command("usage", "Show hourly usage in a window of time.", "billing.usage:usage"),
    ),
)
_CHECKPOINT = Group(
    "checkpoint",
    "Create, list, share, download, export and delete checkpoints.",
    (
        Command(
            "create", "Create a run and save its weights.", "checkpoint.create:create", ("save",)
        ),
        Command("delete", "Delete checkpoints, permanently.", "checkpoint.delete:delete"),
        Command("download", "Download a checkpoint's files.", "checkpoint.download:download"),
        Command(
            "export", "Write a checkpoint in another library's layout.", "checkpoint.export:export"
        ),
        Command("info", "Show one checkpoint.", "checkpoint.info:info"),
        Command("list", "List checkpoints of one run or of all.", "checkpoint.listing:list_"),
        Command("publish", "Let everyone read a checkpoint.", "checkpoint.sharing:publish"),
        Command("push-hf", "Upload a checkpoint to the Hugging Face Hub.", "checkpoint.hub:push"),
        Command("set-ttl", "Set or remove a checkpoint's expiry.", "checkpoint.expiry:set_ttl"),
        Command("unpublish", "Make a checkpoint private again.", "checkpoint.sharing:unpublish"),
    ),
    default="create",
)
_ENGINE = Group(
    "engine",
    "See, drain and restart your own server's engines.",
    (
        Command("drain", "Empty an engine; its runs go on elsewhere.", "engine:drain"),
        Command("list", "List the engines and how they are.", "engine:list_"),
        Command("restart", "Restart engines without losing a run.", "engine:restart"),
        Command("resume", "Let a drained engine take work again.", "engine:resume"),
    ),
)
_HOME = Group(
    "home",
    "See what takes room in your own server's home.",
    (
        Command("du", "Show what takes room in a home.", "home:du"),
        Command("gc", "Let go of what a home need not keep.", "home:gc"),
        Command("migrate", "Move a home to a team's stores.", "home:migrate"),
    ),
)
_KEYS = Group(
    "keys",
    "Manage the API keys of your own server.",
    (
        Command("create", "Create a key and print it once.", "keys:create"),
        Command("list", "List the keys, never their secrets.", "keys:list_"),
        Command("revoke", "Revoke a key.", "keys:revoke"),
    ),
)
_MODEL = Group(
    "model",
    "See the models a server offers, and those this machine can serve.",
    (
        Command("list", "List the models a server lets you train or sample.", "model:list_"),
        Command("local", "List the models this machine can serve.", "models:models"),
    ),
)
_RUN = Group(
    "run",
    "List, watch, plot, name, stop and delete runs; sample from models.",
    (
        Command("delete", "Delete an ended run, permanently.", "run.edits:delete"),
        Command("info", "Show one training run.", "run.info:info"),
        Command("list", "List training runs.", "run.listing:list_"),
        Command("note", "Keep a remark with a run.", "run.edits:note"),
        Command("plot", "Save runs' curves as a picture or a table.", "run.plot:plot"),
        Command("rename", "Give a run a name to know it by.", "run.edits:rename"),
        Command("sample", "Sample text from a model or checkpoint.", "run.sample:sample"),
        Command("stop", "End a run that is live.", "run.edits:stop"),
        Command("watch", "Draw a run's curves in the terminal.", "run.watch:watch_"),
    ),
    default="sample",
)
_SESSION = Group(
    "session",
    "Look into sessions.",
    (
        Command(
            "export-trace",
            "Download a session's timeline for Perfetto.",
            "session:export_trace",
        ),
    ),
)

COMMANDS: dict[str, Group | Command] = {
    entry.name: entry
    for entry in (
        _AUTH,
        _BILLING,
        Command("chat", "Talk with a model, or with what was trained last.", "chat.chat:chat"),
        _CHECKPOINT,
        Command("completion", "Print the completion script for a shell.", "completion:completion"),
        Command("dashboard", "Open your own server's page in a browser.", "dashboard:dashboard"),
        Command("demo", "Fine-tune a small model here and see the difference.", "demo:demo"),
        _ENGINE,
        _HOME,
        _KEYS,
        _MODEL,
        _RUN,
        Command("serve", "Serve the API on this machine.", "serve:serve"),
        _SESSION,
        Command("top", "Watch a server: engines, queue, runs.", "top:top"),
        Command("version", "Show version information.", "version:version"),
    )
}

# Earlier names of commands: they work, and no help lists them.
RENAMED: dict[str, tuple[str, str]] = {"models": ("model", "local")}
