"""A pytest plugin: OpenHands' own tests of its terminal use Holdfast sessions. See README.md."""

from typing import Any

import openhands.tools.terminal.impl as impl
import openhands.tools.terminal.terminal as terminal
import openhands.tools.terminal.terminal.factory as factory
from holdfast_openhands import HoldfastExecutor, HoldfastSession


class Executor(HoldfastExecutor):
    """Takes and ignores the options that choose one of OpenHands' own terminals."""

    def __init__(self, working_dir: str, *ignored: Any, env: Any = None, **more: Any) -> None:
        kept = ("no_change_timeout_seconds", "full_output_save_dir")
        super().__init__(working_dir, env=env, **{key: more[key] for key in kept if key in more})


def create(
    work_dir: str,
    username: str | None = None,
    no_change_timeout_seconds: int | None = None,
    terminal_type: str | None = None,
    shell_path: str | None = None,
    env: dict[str, str] | None = None,
) -> HoldfastSession:
    return HoldfastSession(work_dir, username, no_change_timeout_seconds, env=env)


for module in (impl, terminal, factory):
    module.create_terminal_session = create
impl.TerminalExecutor = Executor
