"""Documents that an agent can read: how the tools behave, and the contract as a schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from holdfast.core.contract.schema import message_schema
from holdfast.core.contract.table import OPERATIONS
from holdfast.model.errors import NotFound

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

GUIDE: Final = "holdfast://guide"
SCHEMA: Final = "holdfast://operations.schema.json"
RESOURCES: Final[tuple[Json, ...]] = (
    {"uri": GUIDE, "name": "How the tools behave", "mimeType": "text/markdown"},
    {"uri": SCHEMA, "name": "The operations behind the tools", "mimeType": "application/json"},
)

_GUIDE: Final = """\
# Working in a shared session

- `run` types a command into the session's shell and returns its own exit code. People see it as it
  happens, and the record has it with your name.
- State `held`: the policy asks a human. You cannot approve. Poll `read(ref)`; the same command
  starts when it is approved, and is `refused` when it is denied. Do something else meanwhile, or
  say what you wait for. Do not look for another way to the same effect.
- State `waiting_for_turn`: another operator writes. Your command starts when you have the turn
  again. `changed_by_others` in the next result says what happened meanwhile: trust it, not memory.
- State `running`: the command goes on without you. `read(ref, wait_s)` gives news and the exit
  code; `stop` ends it.
- State `needs_input`: a program asks; `screen` shows the question, `send` answers it. State
  `needs_secret`: a program asks without echo, for a password. Ask a human to attach and type it.
- `refused` with `retry_safe` false: it may have happened. Look before you try again, or use the
  same `once` key.
- State `refused`, error `busy`: a program has the terminal. It gets nothing of your command. `stop`
  ends it by a signal, also if keys wait behind text that it does not read.
- Send a whole line with the key Enter in one call. Single keys and halves of lines wait for a human
  at a prompt.
- `wait` with `text:` looks only at output since your last `run` or `send`, or from `since` on.
- Output is plain text and cut in the middle; the field `cut` says so, and a note without the field
  is the program's own. `read(cursor)` has the rest, `gap` counts bytes that are gone.
- Values of the server's variables that look like keys are hidden; other secrets are not.

Further tools, if this server has them:

- `find_files`, `read_file`, `write_file`, `edit_file` see the files as the session does; relative
  paths begin in the shell's directory. `read_file` gives whole lines; go on with `line` = `next`.
  `edit_file` replaces exact text. All of them can be `held`: poll `read(ref)`.
- `branch` makes live copies of a session: fork, work in `work-1` and `work-2` by `session`, compare
  with diff, then keep one. External effects of a branch are not undone.
- `forward` brings a listening port of the session to an address of the machine of this server.
"""


def _schema() -> Json:
    used: Json = {}
    operations = {
        one.name: {
            "help": one.help,
            "request": message_schema(one.request, True, used),
            "reply": message_schema(one.reply, False, used),
        }
        for one in OPERATIONS.values()
    }
    return {"operations": operations, "$defs": used}


def resource(uri: str) -> tuple[str, str]:
    """The media type and the text of a document."""
    if uri == GUIDE:
        return "text/markdown", _GUIDE
    if uri == SCHEMA:
        return "application/json", json.dumps(_schema())
    raise NotFound(f"there is no resource {uri[:80]!a}", f"there are {GUIDE} and {SCHEMA}")
