"""The tool `terminal` of OpenHands with a Holdfast session behind it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openhands.sdk.tool import register_tool
from openhands.tools.terminal.definition import TerminalAction, TerminalObservation, TerminalTool
from openhands.tools.terminal.env import ENV_VAR_NAME_RE, normalize_terminal_env
from openhands.tools.terminal.impl import TerminalExecutor

from holdfast_openhands.session import HoldfastConfig, HoldfastSession

if TYPE_CHECKING:
    from openhands.sdk.conversation import LocalConversation
    from openhands.sdk.conversation.state import ConversationState


class HoldfastExecutor(TerminalExecutor):
    """Executes terminal actions in a single session, one after the other."""

    def __init__(
        self,
        working_dir: str,
        no_change_timeout_seconds: int | None = None,
        env: Mapping[str, str] | None = None,
        full_output_save_dir: str | None = None,
        config: HoldfastConfig | None = None,
    ) -> None:
        # The base class would start a terminal of its own: its fields are set here instead.
        self.shell_path = None
        self.full_output_save_dir = full_output_save_dir
        self._working_dir, self._username = working_dir, None
        self._no_change_timeout_seconds = no_change_timeout_seconds
        self._env, self._config = normalize_terminal_env(env), config
        self._pool, self._sessions_lock = None, threading.Lock()
        self._sessions: dict[int, HoldfastSession] = {}  # of a pool: none
        self._session = self._open()

    def _open(self) -> HoldfastSession:
        made = HoldfastSession(
            self._working_dir,
            no_change_timeout_seconds=self._no_change_timeout_seconds,
            env=self._env,
            config=self._config,
        )
        made.initialize()
        return made

    def _reset_single_session(self) -> TerminalObservation:
        self._session.close(end=True)
        self._session = self._open()
        return TerminalObservation.from_text(text=self._RESET_TEXT, command="[RESET]", exit_code=0)

    def _export_envs(
        self,
        action: TerminalAction,
        conversation: LocalConversation | None = None,
        session: Any = None,
    ) -> None:
        """Secrets of the conversation that the command names. The base class types them."""
        if conversation is None or action.is_input or self._session.is_running():
            return
        registry = conversation.state.secret_registry
        secrets = registry.get_secrets_as_env_vars(action.command)
        if valid := {k: v for k, v in secrets.items() if ENV_VAR_NAME_RE.match(k)}:
            self._session.export(valid)


class HoldfastTerminalTool(TerminalTool):
    """The tool as the model knows it; its parameters are those of `HoldfastConfig`."""

    name = TerminalTool.name

    @classmethod
    def create(
        cls,
        conv_state: ConversationState,
        no_change_timeout_seconds: int | None = None,
        *,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Sequence[TerminalTool]:
        executor = HoldfastExecutor(
            conv_state.workspace.working_dir,
            no_change_timeout_seconds,
            env,
            conv_state.env_observation_persistence_dir,
            HoldfastConfig(**options),
        )
        made: Sequence[TerminalTool] = super().create(conv_state, executor=executor)
        return made


register_tool(TerminalTool.name, HoldfastTerminalTool)
