# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in bash, zsh and fish, made from the parsers of the commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")
HINTS = {
    "bash": 'eval "$({tool} --completion bash)" in ~/.bashrc',
    "zsh": 'eval "$({tool} --completion zsh)" in ~/.zshrc, after compinit',
    "fish": "{tool} --completion fish | source in ~/.config/fish/config.fish",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as a shell completes it.

    `values` is empty if the flag takes no value or any value. `command` is the subcommand that has the flag.
    """

    name: str
    help: str
    takes_value: bool
    values: tuple[str, ...]
    command: str = ""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the script with which a shell completes the flags of a parser and of its subcommands.

    `shell` is one of SHELLS.
    """
    tool = parser.prog
    commands = dict(_commands(parser))
    flags = [*_flags(parser), *(flag for name, sub in commands.items() for flag in _flags(sub, name))]
    words = {name: " ".join(_words(sub)) for name, sub in commands.items()}
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](tool, words, flags)
    return f"# {shell} completion of {tool}: {HINTS[shell].format(tool=tool)}\n{made}"


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _flags(parser: argparse.ArgumentParser, command: str = "") -> Iterator[Flag]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        for name in action.option_strings:
            help_text = (action.help or "").partition(";")[0]
            yield Flag(name, help_text, action.nargs != 0, tuple(_values(action)), command)


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the words that a command line may have without a flag; none if such words are file names."""
    return [word for action in parser._actions if not action.option_strings for word in _values(action)]


def _values(action: argparse.Action) -> list[str]:
    if action.choices:
        return list(map(str, action.choices))
    metavar = str(action.metavar)
    is_list = re.fullmatch(r"[\w-]+(\|[\w-]+)+", metavar)  # such as better|always
    return metavar.split("|") if is_list else []


def _bash(tool: str, commands: dict[str, str], flags: list[Flag]) -> str:
    function = "_" + re.sub(r"\W", "_", tool)
    return f"""\
{function}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" flag="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" values=""
  [[ $COMP_CWORD -gt 1 ]] && command="${{COMP_WORDS[1]}}"
  [[ $current == "=" ]] && current=""
  [[ $flag == "=" ]] && flag="${{COMP_WORDS[COMP_CWORD-2]}}"
  case "$command:$flag" in
{"".join(map(_bash_values, flags))}  esac
  case "$command" in
{"".join(_bash_words(command, commands, flags) for command in [*commands, ""])}  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  elif [[ -n "{" ".join(commands)}" && $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$current"))
  elif [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -o bashdefault -F {function} {tool}
"""


def _bash_values(flag: Flag) -> str:
    """Returns the case that completes the values of a flag; none if they are not known."""
    if not flag.values:
        return ""
    completed = f'COMPREPLY=($(compgen -W "{" ".join(flag.values)}" -- "$current"))'
    return f"    {flag.command or '*'}:{flag.name}) {completed}; return ;;\n"


def _bash_words(command: str, commands: dict[str, str], flags: list[Flag]) -> str:
    """Returns the case with the flags and the other words of a command; "" stands for any command."""
    words = " ".join(each.name for each in flags if each.command == command)
    return f'    {command or "*"}) words="{words}" values="{commands.get(command, "")}" ;;\n'


def _zsh(tool: str, commands: dict[str, str], flags: list[Flag]) -> str:
    function = "_" + re.sub(r"\W", "_", tool)
    own = "".join(f"    {_zsh_spec(each)}\n" for each in flags if not each.command)
    if not commands:
        specs = f"  local -a specs=(\n{own}  )\n  _arguments $specs '*:file:_files'\n"
        return f"{function}() {{\n{specs}}}\ncompdef {function} {tool}\n"
    cases = "".join(
        f"    {name}) specs=(\n"
        + "".join(f"      {_zsh_spec(each)}\n" for each in flags if each.command == name)
        + (f"    )\n    rest='*:value:({words})' ;;\n" if words else "    ) ;;\n")
        for name, words in commands.items()
    )
    return f"""\
{function}() {{
  local rest='*:file:_files'
  local -a specs=(
{own}  )
  if (( CURRENT == 2 )); then
    _arguments $specs '1:command:({" ".join(commands)})'
    return
  fi
  case $words[2] in
{cases}  esac
  _arguments $specs $rest
}}
compdef {function} {tool}
"""


def _zsh_spec(flag: Flag) -> str:
    described = re.sub(r"([\[\]:])", r"\\\1", flag.help)
    equals = "=" if flag.takes_value and flag.name.startswith("--") else ""
    value = f":value:({' '.join(flag.values)})" if flag.values else ":value:_files" if flag.takes_value else ""
    return _quoted(f"*{flag.name}{equals}[{described}]{value}", "'\\''")


def _fish(tool: str, commands: dict[str, str], flags: list[Flag]) -> str:
    lines = [f"complete -c {tool} -n __fish_use_subcommand -f -a {name}" for name in commands]
    lines += [
        f"complete -c {tool} -n '__fish_seen_subcommand_from {name}' -f -a '{words}'"
        for name, words in commands.items()
        if words
    ]
    return "".join(f"{line}\n" for line in [*lines, *(_fish_line(tool, commands, each) for each in flags)])


def _fish_line(tool: str, commands: dict[str, str], flag: Flag) -> str:
    where = (
        f"__fish_seen_subcommand_from {flag.command}" if flag.command else "__fish_use_subcommand" if commands else ""
    )
    parts = [f"complete -c {tool}"]
    parts += [f"-n '{where}'"] if where else []
    parts.append(f"-l {flag.name[2:]}" if flag.name.startswith("--") else f"-s {flag.name[1:]}")
    if flag.takes_value:
        parts.append(f"-x -a '{' '.join(flag.values)}'" if flag.values else "-r")
    return " ".join([*parts, "-d", _quoted(flag.help, "\\'")])


def _quoted(text: str, quote: str) -> str:
    return "'" + text.replace("'", quote) + "'"
