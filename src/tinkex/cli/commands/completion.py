"""`tinkex completion`: the script that makes a shell complete `tinkex` lines."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.output import LineOutput

# Words are cut at spaces only: checkpoint paths and run ids contain colons, where bash cuts too.
_BASH = r"""_tinkex_complete() {
    local line=${COMP_LINE:0:COMP_POINT} current candidate
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[${#words[@]}-1]}
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ $COMP_WORDBREAKS == *:* && $current == *:* ]] && candidate=${candidate#"${current%:*}:"}
        COMPREPLY+=("$candidate")
    done < <(tinkex __complete "${words[@]:1}" 2>/dev/null)
}
complete -o nosort -F _tinkex_complete tinkex"""

_ZSH = r"""#compdef tinkex
_tinkex() {
    local -a candidates
    candidates=("${(@f)$(tinkex __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n $candidates[1] ]] && compadd -Q -V tinkex -- $candidates
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _tinkex "$@"
else
    compdef _tinkex tinkex
fi"""

_FISH = r"""function __tinkex_complete
    set -l words (commandline -opc) (commandline -ct)
    tinkex __complete $words[2..-1] 2>/dev/null
end
complete -c tinkex -f -a '(__tinkex_complete)'"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


class CompletionScript(LineOutput):
    """A script for one shell."""

    def __init__(self, shell: str) -> None:
        self.shell = shell

    def to_dict(self) -> dict[str, Any]:
        return {"shell": self.shell, "script": SCRIPTS[self.shell] + "\n"}

    def lines(self) -> list[str]:
        return [SCRIPTS[self.shell]]


@command
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion(_context: CommandContext, shell: str) -> CompletionScript:
    """Print the script that completes tinkex lines in SHELL.

    \b
    bash:  eval "$(tinkex completion bash)"          in ~/.bashrc
    zsh:   eval "$(tinkex completion zsh)"           in ~/.zshrc, after compinit
    fish:  tinkex completion fish > ~/.config/fish/completions/tinkex.fish

    Example: tinkex completion bash
    """
    return CompletionScript(shell)
