"""OpenHands as a program of its own, in the environment that `scripts/openhands` makes.

The argument is JSON with the options of the tool. Each line of stdin is a JSON object and gets a
line of JSON: with `command` an action of the terminal tool, with `model` a whole conversation of an
agent with the model at that address.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from typing import Any

import holdfast_openhands  # registers the tool
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.conversation.state import ConversationState
from openhands.sdk.tool import resolve_tool
from openhands.sdk.workspace import LocalWorkspace
from openhands.tools.terminal import TerminalAction
from pydantic import SecretStr

Json = dict[str, Any]
OPTIONS: Json = json.loads(sys.argv[1])
TERMINAL = Tool(name="terminal", params=OPTIONS)


def agent(url: str) -> Agent:
    llm = LLM(model="openai/scripted", base_url=f"{url}/v1", api_key=SecretStr("none"))
    return Agent(llm=llm, tools=[TERMINAL])


def terminal() -> Any:
    (made,) = resolve_tool(
        TERMINAL,
        ConversationState.create(
            id=uuid.uuid4(), agent=agent(""), workspace=LocalWorkspace(working_dir=os.getcwd())
        ),
    )
    assert isinstance(made, holdfast_openhands.HoldfastTerminalTool)
    return made


def main() -> None:
    # OpenHands prints to stdout.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tool: Any = None
    for line in sys.stdin:
        asked: Json = json.loads(line)
        if "model" in asked:
            talk = Conversation(
                agent=agent(asked["model"]), workspace=os.getcwd(), secrets=asked["secrets"]
            )
            talk.send_message("Begin.")
            talk.run()
            talk.close()
            found: Json = {"status": talk.state.execution_status}
        else:
            tool = tool or terminal()
            seen = tool(TerminalAction(**asked))
            shown = "".join(one.text for one in seen.to_llm_content)
            found = {"text": seen.text, "code": seen.exit_code, "error": seen.is_error}
            found |= {"shown": shown, "cwd": seen.metadata.working_dir}
        print(json.dumps(found), file=answers, flush=True)
    if tool is not None:
        tool.executor.close()


main()
