# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in bash, zsh and fish, made from the parser of a command: there is no second list of flags."""

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
    """A flag as a shell completes it: `values` is empty for one that takes none or any; `command` is the subcommand it is of."""

    name: str
    help: str
    takes_value: bool
    values: tuple[str, ...]
    command: str = ""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns what a shell evaluates to complete the flags of a parser, its subcommands and theirs; `shell` is one of SHELLS."""
    tool = parser.prog
    commands = dict(_commands(parser))
    flags = [*_flags(parser), *(flag for name, sub in commands.items() for flag in _flags(sub, name))]
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](tool, list(commands), flags)
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
            values = tuple(map(str, action.choices or ()))
            if not values and re.fullmatch(r"[\w-]+(\|[\w-]+)+", str(action.metavar)):  # such as better|always
                values = tuple(action.metavar.split("|"))
            yield Flag(name, (action.help or "").partition(";")[0], action.nargs != 0, values, command)


def _bash(tool: str, commands: list[str], flags: list[Flag]) -> str:
    function = "_" + re.sub(r"\W", "_", tool)
    cases = "".join(
        f'    {each.command or "*"}:{each.name}) COMPREPLY=($(compgen -W "{" ".join(each.values)}" -- "$current")); return ;;\n'
        for each in flags
        if each.values
    )
    words = "".join(
        f'    {command or "*"}) words="{" ".join(each.name for each in flags if each.command == command)}" ;;\n'
        for command in [*commands, ""]
    )
    return f"""\
{function}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" flag="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words=""
  [[ $COMP_CWORD -gt 1 ]] && command="${{COMP_WORDS[1]}}"
  [[ $current == "=" ]] && current=""
  [[ $flag == "=" ]] && flag="${{COMP_WORDS[COMP_CWORD-2]}}"
  case "$command:$flag" in
{cases}  esac
  case "$command" in
{words}  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  elif [[ -n "{" ".join(commands)}" && $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -o bashdefault -F {function} {tool}
"""


def _zsh(tool: str, commands: list[str], flags: list[Flag]) -> str:
    function = "_" + re.sub(r"\W", "_", tool)
    own = "".join(f"    {_zsh_spec(each)}\n" for each in flags if not each.command)
    if not commands:
        specs = f"  local -a specs=(\n{own}  )\n  _arguments $specs '*:file:_files'\n"
        return f"{function}() {{\n{specs}}}\ncompdef {function} {tool}\n"
    cases = "".join(
        f"    {name}) specs=(\n" + "".join(f"      {_zsh_spec(each)}\n" for each in flags if each.command == name) + "    ) ;;\n"
        for name in commands
    )
    return f"""\
{function}() {{
  local -a specs=(
{own}  )
  if (( CURRENT == 2 )); then
    _arguments $specs '1:command:({" ".join(commands)})'
    return
  fi
  case $words[2] in
{cases}  esac
  _arguments $specs '*:file:_files'
}}
compdef {function} {tool}
"""


def _zsh_spec(flag: Flag) -> str:
    described = re.sub(r"([\[\]:])", r"\\\1", flag.help)
    equals = "=" if flag.takes_value and flag.name.startswith("--") else ""
    value = f":value:({' '.join(flag.values)})" if flag.values else ":value:_files" if flag.takes_value else ""
    return _quoted(f"*{flag.name}{equals}[{described}]{value}", "'\\''")


def _fish(tool: str, commands: list[str], flags: list[Flag]) -> str:
    lines = [f"complete -c {tool} -n __fish_use_subcommand -f -a {name}" for name in commands]
    return "".join(f"{line}\n" for line in [*lines, *(_fish_line(tool, commands, each) for each in flags)])


def _fish_line(tool: str, commands: list[str], flag: Flag) -> str:
    where = f"__fish_seen_subcommand_from {flag.command}" if flag.command else "__fish_use_subcommand" if commands else ""
    parts = [f"complete -c {tool}"]
    parts += [f"-n '{where}'"] if where else []
    parts.append(f"-l {flag.name[2:]}" if flag.name.startswith("--") else f"-s {flag.name[1:]}")
    if flag.takes_value:
        parts.append(f"-x -a '{' '.join(flag.values)}'" if flag.values else "-r")
    return " ".join([*parts, "-d", _quoted(flag.help, "\\'")])


def _quoted(text: str, quote: str) -> str:
    return "'" + text.replace("'", quote) + "'"
