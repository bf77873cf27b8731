"""Renders src/holdfast/sync.py, the synchronous API, from the classes of src/holdfast/sdk.

    python scripts/render_sync.py [--check]

Every public class of SOURCES gets a twin that owns the asynchronous object and a portal. Methods
keep their names, arguments, types and documentation. `--check` writes nothing and exits with 1 if
the file is not up to date.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SDK = ROOT / "src/holdfast/sdk"
TARGET = ROOT / "src/holdfast/sync.py"
SOURCES = ("running", "files", "forward", "attach", "session", "operators", "client")
HEAD = '''"""The Python API without `await`: rendered by scripts/render_sync.py from holdfast.sdk.

    with holdfast.sync.connect() as client:
        print(client.sessions.get("main").run("git status").output)

Works in any thread, also in a thread with a running event loop.
"""

from __future__ import annotations

'''


def main() -> int:
    classes: dict[str, tuple[str, ast.ClassDef]] = {}
    imports: set[str] = set()
    for source in SOURCES:
        tree = ast.parse((SDK / f"{source}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] = (source, node)
            elif isinstance(node, ast.ImportFrom) and node.module in KEPT_IMPORTS:
                imports.add(ast.unparse(node))
    connect = next(
        node
        for node in ast.parse((SDK / "client.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "connect"
    )
    names = set(classes)
    parts = [HEAD, *sorted(imports), ""]
    parts += [f"from holdfast.sdk import {source} as _{source}" for source in SOURCES]
    parts += [
        "from holdfast.sdk.portal import Portal",
        "from holdfast.sdk.session import TurnRule",
        "from holdfast.sdk.client import HERE",
        "import builtins",
        "import os",
        "",
    ]
    for name, (source, node) in classes.items():
        parts += twin(name, source, node, names)
    parts += rendered_connect(connect)
    made = formatted("\n".join(parts) + "\n")
    if "--check" in sys.argv:
        return int(TARGET.read_text() != made)
    TARGET.write_text(made)
    return 0


INTERNAL = ("__await__", "step", "heard", "engine", "everywhere")
KEPT_IMPORTS = (
    "collections.abc",
    "types",
    "typing",
    "holdfast.sdk.observed",
    "holdfast.sdk.branches",
    "holdfast.sdk.drained",
    "holdfast.sdk.results",
)


def twin(name: str, source: str, node: ast.ClassDef, names: set[str]) -> list[str]:
    """The synchronous class: its members, in the order of the source."""
    out = [f"class {name}:"]
    if doc := ast.get_docstring(node, clean=False):
        out.append(f'    """{doc.replace("`async with`", "`with`")}"""\n')
    out += [
        f"    def __init__(self, portal: Portal, it: _{source}.{name}) -> None:",
        "        self._portal, self._it = portal, it",
    ]
    members: list[str] = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            out += attributes(item, names)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            members += member(item, names, name)
    return [*out, *members, ""]


def attributes(init: ast.FunctionDef, names: set[str]) -> list[str]:
    """Public attributes: parts of the API are wrapped once, other values are read each time."""
    made, read = [], []
    for item in ast.walk(init):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Attribute):
            continue
        name, value = item.target.attr, item.value
        if name.startswith("_"):
            continue
        kind = (
            value.func.id
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
            else ""
        )
        if kind in names:
            made.append(f"        self.{name} = {kind}(portal, it.{name})")
        else:
            shown = ast.unparse(item.annotation)
            shown = "str" if shown == "Final" else shown
            read.append(
                f"    @property\n    def {name}(self) -> {shown}:\n        return self._it.{name}\n"
            )
    return [*made, "", *read]


def member(item: ast.FunctionDef | ast.AsyncFunctionDef, names: set[str], of: str) -> list[str]:
    name = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}.get(
        item.name, item.name
    )
    if (name.startswith("_") and not name.startswith("__")) or name in INTERNAL:
        return []
    returns = ast.unparse(item.returns) if item.returns else "None"
    call = f"self._it.{item.name}({arguments(item.args)})"
    out: list[str] = []
    if any(isinstance(one, ast.Name) and one.id == "property" for one in item.decorator_list):
        out.append("    @property")
        call = f"self._it.{item.name}"
    if "AsyncGenerator[" in returns or "AsyncIterator[" in returns:
        inner = returns.partition("[")[2].removesuffix("]").removesuffix(", None")
        returns = f"Generator[{inner}, None, None]"
        body = f"return self._portal.iterate({call})"
    elif name == "__enter__":
        body = "return self" if of == "Client" else f"self._portal.run({call})\n        return self"
    elif name == "__exit__" or (name == "close" and of == "Client"):
        inner = (
            "self.close()"
            if name == "__exit__"
            else f"self._portal.run({call})\n        self._portal.close()"
        )
        body = inner
    elif isinstance(item, ast.FunctionDef):
        body = f"return {returns}(self._portal, {call})" if returns in names else f"return {call}"
    elif returns in names:
        body = f"return {returns}(self._portal, self._portal.run({call}))"
    else:
        body = f"{'' if returns == 'None' else 'return '}self._portal.run({call})"
    out.append(f"    def {name}({ast.unparse(item.args)}) -> {returns}:")
    if doc := ast.get_docstring(item, clean=False):
        out.append(f'        """{doc}"""')
    return [*out, f"        {body}\n"]


def arguments(args: ast.arguments) -> str:
    given = [one.arg for one in args.args[1:]]
    given += [f"*{args.vararg.arg}"] if args.vararg else []
    given += [f"{one.arg}={one.arg}" for one in args.kwonlyargs]
    return ", ".join(given)


def rendered_connect(node: ast.FunctionDef) -> list[str]:
    call = ", ".join(
        [one.arg for one in node.args.args]
        + [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
    )
    doc = (ast.get_docstring(node, clean=False) or "").replace(
        "async with holdfast.", "with holdfast.sync."
    )
    doc = doc.replace("await ", "")
    return [
        f"def connect({ast.unparse(node.args)}) -> Client:",
        f'    """{doc}"""',
        f"    return Client(Portal(), _client.connect({call}))",
    ]


def formatted(text: str) -> str:
    for command in (["check", "--fix", "-q", "--select", "I,F401,UP"], ["format", "-q"]):
        done = subprocess.run(
            ["ruff", *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
