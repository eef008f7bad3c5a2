"""`moldau completion`: prints shell completion scripts."""

import click

from moldau.cli.click_groups import command

_INSTALL = {
    "bash": 'eval "$(moldau completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(moldau completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "moldau completion fish | source       # in ~/.config/fish/config.fish",
}


@command("completion", examples=tuple(_INSTALL.values()))
@click.argument("shell", type=click.Choice(tuple(_INSTALL)))
def completion(shell: str) -> None:
    """Print the completion script of a shell: commands, options, topics and groups."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    from moldau.cli.main import cli

    classes = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    completer = classes[shell](cli, {}, "moldau", "_MOLDAU_COMPLETE")
    # Not source(): it runs bash to check its version, and bash may not be installed.
    click.echo(completer.source_template % completer.source_vars())
