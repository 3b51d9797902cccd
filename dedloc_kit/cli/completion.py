"""What a shell completes `dedloc` with: commands, options and their choices, out of the same parsers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_dedloc() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path=dedloc word words=
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$path/$word" in
            @PATHS@) path=$path/$word ;;
        esac
    done
    case "$path $before $current" in
        @CASES@
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o bashdefault -o default -F _dedloc dedloc
"""
_ZSH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""
_FISH = """\
function __dedloc_path
    set -l path dedloc
    for word in (commandline -opc)[2..-1]
        switch $path/$word
            case @PATHS@
                set path $path/$word
        end
    end
    echo $path
end
"""


@dataclass(frozen=True)
class Completed:
    """What may stand behind the words of a command.

    :ivar options: what may stand behind each, if that is known
    """

    path: str
    """The words, such as `dedloc/run/kick`."""
    names: tuple[str, ...] = ()
    """Of a group, its commands."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def script(shell: str, commands: list[Completed]) -> str:
    """What a shell reads to complete `dedloc`."""
    paths = [each.path for each in commands if "/" in each.path]
    if shell == "fish":
        return _FISH.replace("@PATHS@", " ".join(paths)) + "".join(f"{line}\n" for line in _fish(commands))
    cases = "\n        ".join(_bash(commands))
    return _ZSH * (shell == "zsh") + _BASH.replace("@PATHS@", " | ".join(paths)).replace("@CASES@", cases)


def _bash(commands: list[Completed]) -> Iterator[str]:
    """Patterns of `PATH BEFORE CURRENT`, the first of which counts. Where none fits the shell names files."""
    for each in commands:
        for option, choices in each.options.items():
            if choices:
                yield f"'{each.path} {option} '*) words='{' '.join(choices)}' ;;"
    for each in commands:
        yield f"'{each.path} '*' -'*) words='{' '.join(each.options)}' ;;"
        if each.names:
            yield f"'{each.path} '*) words='{' '.join(each.names)}' ;;"


def _fish(commands: list[Completed]) -> Iterator[str]:
    for each in commands:
        here = f"complete -c dedloc -n 'test (__dedloc_path) = {each.path}'"
        if each.names:
            yield f"{here} -f -a '{' '.join(each.names)}'"
        for option, choices in each.options.items():
            yield f"{here} -l {option.removeprefix('--')}" + (f" -x -a '{' '.join(choices)}'" if choices else "")
