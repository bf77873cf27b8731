"""From a request for a contained session to terms, and from the terms to a file tree.

There are two steps, because a policy judges in between. `decide` finds the workspace and checks
what the request asks for; its result is part of the act that the policy and an approver see.
`build` makes the directories and the list of mounts. The keeper follows no links on the way to a
source, so a directory that is exchanged for a link between the two steps is refused.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import holdfast
from holdfast.core.containment import network, terms, tree, variables, words
from holdfast.core.containment import workspace as workspaces
from holdfast.core.containment.entries import Entry, Kind, within
from holdfast.core.containment.system import CLOSED
from holdfast.core.containment.terms import Asked, Configured, Share, Terms
from holdfast.core.containment.workspace import Protected, WorkTree
from holdfast.host.lifecycle.contained import (
    doors,
    own_directories,
    placeholders,
    tool_files,
    walk,
)
from holdfast.host.lifecycle.contained.disk import Disk, open_directory
from holdfast.host.runtime import connectors
from holdfast.model.contained import AUTO, HOST, NONE, OWN, READ_ONLY
from holdfast.model.errors import NotFound, Refused, Unavailable, Usage
from holdfast.wire import spawning as wire

if TYPE_CHECKING:
    from holdfast.home import Home
    from holdfast.home.settings import Settings
    from holdfast.host.shell import SessionDirectories

BOUNDS_BYTES: Final = 8 << 10
NETWORKS: Final = {HOST: wire.NET_HOST, OWN: wire.NET_OWN, NONE: wire.NET_NONE}


class Machine(NamedTuple):
    """The installation, and the environment of the host itself."""

    home: Home
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for a contained session.

    `human`: a person with the right to decide about the tree asks. `chosen`: the directory was
    named, not assumed for a client on another machine.
    """

    cwd: str
    env: Mapping[str, str]
    human: bool
    share: Sequence[str] = ()
    doors: Sequence[str] = ()
    net: str | None = None
    keep_home: bool = False
    agent: str | None = None
    chosen: bool = True
    publish: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The parts of a session. `note`: why there is no workspace, or "". `open_network`: likewise.

    `may_share`: the session may have the machine's network if no other can be connected.
    """

    wanted: Wanted
    terms: Terms
    protected: Protected
    cwd: str
    tree: WorkTree | None
    read_only: bool
    note: str = ""
    open_network: str = ""
    may_share: bool = False

    def sharing_network(self, why: str) -> Decision:
        """The same with the machine's network; `why`: the reason that the connector gave."""
        note = connectors.sharing(why)
        return replace(self, terms=self.terms._replace(net=HOST), open_network=note)

    def details(self) -> dict[str, str]:
        """The parts that an approver must see."""
        found = {
            "workspace": self.tree.top if self.tree is not None else "",
            "share": " ".join(share.text() for share in self.terms.share),
            "doors": " ".join(self.terms.doors),
            "net": self.terms.net if self.terms.net != HOST else "",
            "net_fallback": HOST if self.may_share else "",
            "publish": " ".join(map(str, self.terms.publish)),
            "keep_home": "True" if self.terms.keep_home else "",
        }
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Built:
    """A tree that the keeper can assemble. `says`: one line. `kept`: where the home stays.

    `provided`: the files that the host wrote into the session's home. `hooks_fixed`: no git hook
    that is shown can be written.
    """

    containment: wire.Containment
    cwd: str
    env: dict[str, str]
    says: str
    notes: tuple[str, ...] = ()
    kept: str = ""
    connect: tuple[bytes, ...] = ()
    watched: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, object] = field(default_factory=dict)
    provided: tuple[str, ...] = ()
    hooks_fixed: bool = True


def account_home(environment: Mapping[str, str]) -> str:
    """The home of the host's account, without links."""
    return os.path.realpath(environment.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)


def protected(machine: Machine) -> Protected:
    """The paths of this installation. No path that is writable inside may reach them."""
    installed = {os.path.dirname(os.path.realpath(holdfast.__file__))}
    # The interpreter that runs the host: a virtual environment, or a Python of the user.
    for prefix in (sys.prefix, sys.base_prefix):
        place = os.path.realpath(prefix)
        if place not in ("/", "/usr", "/usr/local"):
            installed.add(place)
    return Protected(
        account_home(machine.environment),
        os.path.realpath(machine.home.state),
        os.path.realpath(os.path.dirname(machine.home.config)),
        tuple(sorted(installed)),
    )


def configured(settings: Settings, account: str) -> Configured:
    """The section [contain], with resolved paths. `account`: the home of the account."""
    return Configured(
        tuple(_share(text, account) for text in settings.contain_share),
        tuple(_real(path, account) for path in settings.contain_workspaces),
        settings.contain_doors,
        _net(settings.contain_net),
        settings.contain_tool_files,
        settings.contain_keep_home,
        settings.contain_publish,
    )


def _net(setting: str) -> str:
    if setting != AUTO:
        return setting
    return OWN if connectors.usable() else HOST


def _real(path: str, account: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = account + path[1:]
    return _resolved(path)


def _resolved(path: str) -> str:
    """The path without links. A program may exchange a directory and a link meanwhile."""
    try:
        return os.path.realpath(path)
    except OSError as e:
        raise _changed(path) from e


def _changed(path: str) -> Unavailable:
    return Unavailable(f"{path} changed while Holdfast looked at it", "try again")


def _share(text: str, account: str) -> Share:
    share = terms.parse_share(text)
    return Share(_real(share.path, account), share.writable)


def decide(machine: Machine, settings: Settings, wanted: Wanted) -> Decision:
    """The terms and the workspace. Raises an error with advice for a wish that is not allowed."""
    files, paths = Disk(), protected(machine)
    set_here = configured(settings, paths.home)
    for text in wanted.share:
        if not text.startswith(("/", "~")) or "\0" in text:
            raise Usage(f"--share {text[:80]!a} is not an absolute path")
    asked = Asked(
        [_share(text, paths.home) for text in wanted.share],
        wanted.doors,
        wanted.net,
        wanted.keep_home,
        wanted.publish,
    )
    there = [share for share in set_here.share if files.kind(share.path)]
    gone = [share.path for share in set_here.share if share not in there]
    set_here = set_here._replace(share=there)
    agreed = terms.agree(set_here, asked, wanted.human)
    if agreed.net == OWN:
        connectors.check(connectors.installed(), agreed.publish)
    for share in agreed.share:
        tree.check_share(share, files, paths)
    if paths.home == "/" or any(within(paths.home, top) for top in CLOSED):
        raise Refused(
            f"the home of this account is {paths.home}: a contained session cannot have its own",
            "run the host in an account with a home directory of its own",
        )
    cwd = _resolved(wanted.cwd)
    if not os.path.isdir(cwd):
        raise NotFound(f"there is no directory {wanted.cwd}", "check --cwd")
    found, note = _workspace(files, paths, set_here, wanted, cwd)
    if found is not None and not wanted.human:
        _check_hooks(files, found)
    if gone:
        missing = f"contain.share: there is no {gone[0]}"
        note = f"{note}; {missing}" if note else missing
    read_only = not wanted.human and set_here.tool_files == READ_ONLY
    fallen_back = wanted.net is None and settings.contain_net == AUTO and agreed.net == HOST
    open_network = connectors.advice() if fallen_back else ""
    may_share = (
        wanted.net is None
        and settings.contain_net == AUTO
        and agreed.net == OWN
        and not agreed.publish
    )
    return Decision(wanted, agreed, paths, cwd, found, read_only, note, open_network, may_share)


def _workspace(
    files: Disk, paths: Protected, set_here: Configured, wanted: Wanted, cwd: str
) -> tuple[WorkTree | None, str]:
    why = workspaces.outside(cwd, paths)
    if not wanted.human:
        top = terms.workspace_for_agent(set_here, cwd)
        if not top or why is not None:
            return None, f"no workspace: {cwd} is not in contain.workspaces of the configuration"
    elif why is not None:
        if not why.harmless and wanted.chosen:
            raise Refused(
                f"{wanted.cwd} cannot be the workspace of a contained session: {why.reason}",
                "start it in the directory of a project (`--cwd DIR`); "
                "`--cwd /tmp` starts it without a workspace",
            )
        return None, f"no workspace: {why.reason}"
    else:
        top = "/"
    found = workspaces.work_tree(
        files, cwd, lambda place: within(place, top) and workspaces.outside(place, paths) is None
    )
    if found.linked and workspaces.outside(found.git, paths) is not None:
        found = WorkTree(found.top)
    return found, ""


def _check_hooks(files: Disk, found: WorkTree, writable: Sequence[str] = ()) -> None:
    for place in workspaces.hooks(files, found):
        link = workspaces.behind_link(files, place, writable)
        if link or files.kind(place) not in ("", "dir"):
            raise Refused(
                f"{link or place} is not a directory, so it cannot be kept from agents",
                "replace it with a directory; `core.hooksPath` can name another place",
            )
        if place in found.named and any(within(top, place) for top in writable):
            raise Refused(
                f"core.hooksPath names {place}, which the session may write",
                "let core.hooksPath name a directory of its own",
            )


def _open(files: Disk, found: WorkTree, granted: Sequence[str], read_only: bool) -> str:
    """Why code that writes these paths could leave programs for the tools of a person; or "".

    Each path is judged by the directories above it too: their guards may not be in the session.
    """
    guarded = workspaces.repositories(files, found)
    for place in granted:
        git = workspaces.git_above(files, place)
        if git and git not in guarded:
            return f"{place} lies in the git directory {git}"
        if read_only and workspaces.tools_above(place):
            return f"{place} has files that tools execute later"
    return ""


def _looked_through(
    files: Disk, found: WorkTree, walked: walk.Found, writable: Sequence[str]
) -> WorkTree:
    """The workspace with the other work trees that its repositories lead to."""
    linked = _within(walked.linked, writable)
    others = [one for one in linked if workspaces.leads_outside(files, one, writable)]
    pointers = _within(walked.pointers, writable)
    own = [entry.target for entry in workspaces.entries(found)]
    shares = [top for top in writable if top not in own and files.kind(top) == "dir"]
    return found._replace(
        others=tuple(others), pointers=tuple(pointers), shares=tuple(dict.fromkeys(shares))
    )


def _guarded(
    files: Disk, found: WorkTree, walked: walk.Found, writable: Sequence[str], home: str
) -> WorkTree:
    """The workspace with all repositories. Each gets a directory for hooks."""
    if not writable:
        return found
    if not walked.complete:
        raise Refused(
            f"{writable[0]} is too large to look through for repositories, whose hooks"
            f" must be kept from agents: more than {walk.ENTRIES_MAX} entries, more than "
            f"{walk.FOUND_MAX} repositories, linked work trees or sockets, or more than "
            f"{walk.POINTERS_MAX} files named .git",
            "start the session in the directory of a project (`--cwd DIR`), remove old sockets, or "
            "let a person make the session",
        )
    if closed := _within(walked.closed, writable):
        raise Refused(
            f"{closed[0]} cannot be read, so it may hide a repository, whose hooks must be kept"
            " from agents",
            f"make it readable (`chmod u+rwx {closed[0]}`), or remove it",
        )
    found = found._replace(nested=tuple(_within(walked.repositories, writable)))
    found = found._replace(named=tuple(workspaces.named_hooks(files, found, writable, home)))
    _check_hooks(files, found, writable)
    for place in workspaces.hooks(files, found):
        try:
            os.close(open_directory(place, make=True))
        except OSError as e:
            if e.errno not in placeholders.CANNOT:
                raise _changed(place) from e
    _check_hooks(files, found, writable)  # again: the policy may have asked meanwhile
    return found


def _fixed(files: Disk, base: str, found: WorkTree) -> list[str]:
    """The tool files that become read-only; absent ones get placeholders."""
    if link := workspaces.cannot_be_fixed(files, found):
        raise Refused(
            f"{link} is a link, so it cannot be kept from agents",
            'replace it with a file, or set `contain.tool_files = "list"`',
        )
    return [*workspaces.tool_files(files, found), *placeholders.make(base, found)]


def _spared(files: Disk, found: WorkTree, parts: tree.Parts) -> list[str]:
    """The hooks that a person shares to be written, by name."""
    shared = {share.path for share in parts.share if share.writable}
    return [place for place in workspaces.hooks(files, found) if place in shared]


def _assembled(
    files: Disk, parts: tree.Parts, walked: walk.Found
) -> tuple[tree.Tree, tuple[Entry, ...]]:
    made = tree.assemble(files, parts)
    behind = walk.find(list(made.tools), walk.TOOL_ENTRIES_MAX)
    return made, tree.masked(made, (*walked.paths, *behind.paths))


def _within(places: Iterable[str], tops: Sequence[str]) -> list[str]:
    return [place for place in places if any(within(place, top) for top in tops)]


def build(
    machine: Machine,
    decision: Decision,
    session: str,
    keep_as: str,
    directories: SessionDirectories,
) -> Built:
    """Make the session's directories and the list of mounts."""
    files, paths, uid = Disk(), decision.protected, os.geteuid()
    wanted, found = decision.wanted, decision.tree
    own = own_directories.own(machine.home, session, keep_as if decision.terms.keep_home else "")
    state = paths.state[len(paths.home) + 1 :] if within(paths.state, paths.home) else ""
    provided = own_directories.make(own, uid, paths.home, state)
    outer = wanted.env if wanted.human else machine.environment
    opened = doors.open_doors(decision.terms.doors, files, outer, wanted.agent, uid)
    net, ports = decision.terms.net, decision.terms.publish
    resolver = connectors.resolver(own.base) if net == OWN else []
    parts = tree.Parts(
        paths,
        uid == 0,
        (outer.get("PATH") or variables.DEFAULT_PATH).split(":"),
        os.path.realpath(own.base),
        os.path.realpath(own.files),
        found,
        decision.terms.share,
        doors=(*opened.entries, *(Entry(Kind.READ, *place) for place in resolver)),
        read=os.path.realpath(directories.readable),
        written=os.path.realpath(directories.writable),
    )
    shown = tree.shown_trees(parts)
    walked = walk.find(shown)
    writable = [entry.target for entry in workspaces.entries(found)] if found is not None else []
    writable += [share.path for share in parts.share if share.writable]
    looked = _looked_through(files, found or WorkTree(""), walked, writable)
    shared = [share.path for share in parts.share if share.writable]
    granted = [*([found.top] if found is not None else []), *shared]
    open_hooks = ""
    try:
        looked = _guarded(files, looked, walked, writable, paths.home)
        open_hooks = _open(files, looked, granted, decision.read_only)
        if open_hooks and not wanted.human:
            raise Refused(
                f"{open_hooks}, so an agent cannot write there",
                "start the session in the directory of a project (`--cwd DIR`), or let a person"
                " make the session",
            )
        fixed = _fixed(files, own.base, looked) if decision.read_only else []
        spared = _spared(files, looked, parts) if wanted.human else []
        if spared:
            open_hooks = f"{words.short(spared[0], paths.home)} is shared to be written"
        guarded = parts._replace(guarded=looked, fixed=fixed, spared=spared)
        made, entries = _assembled(files, guarded, walked)
    except Refused as e:
        if not wanted.human:
            raise
        open_hooks = e.message
        made, entries = _assembled(files, parts, walked)
    notes = [decision.note, opened.warning, decision.open_network]
    if open_hooks:
        notes.append(f"git hooks can be written, so agents cannot act here: {open_hooks}")
    if net == OWN and (name := network.proxy_on_loopback(outer)):
        notes.append(f"{name} leads to the machine's loopback, which is out of reach")
    if not walked.complete:
        notes.append(
            f"sockets in {words.short(shown[0], paths.home)} may be reachable: it has more than "
            f"{walk.ENTRIES_MAX} entries, or more than {walk.FOUND_MAX} sockets"
        )
    env = variables.inside(
        {"PATH": outer.get("PATH", ""), **wanted.env},
        paths.home,
        uid,
        lambda path: tree.visible(made, path, os.path.isdir(path)),
    )
    env |= variables.installers(paths.home, tree.visible(made, f"{paths.home}/.nvm", False))
    shell = env.get("SHELL", "")
    if shell and not tree.visible(made, os.path.realpath(shell), os.path.isfile(shell)):
        del env["SHELL"]
    cwd = decision.cwd if tree.visible(made, decision.cwd, True) else paths.home
    mounts = tuple(
        wire.Mount(int(e.kind), os.fsencode(e.target), os.fsencode(e.source)) for e in entries
    )
    watched = workspaces.tool_files(files, looked) if writable else []
    return Built(
        wire.Containment(mounts, NETWORKS[net]),
        cwd,
        env | opened.variables,
        words.described(
            paths.home,
            (*made.tools, *made.read),
            made.written,
            decision.terms.doors,
            net,
            ports,
        ),
        tuple(note for note in notes if note),
        own.files if own.kept else "",
        _connect(uid, ports) if net == OWN else (),
        tool_files.digests(watched, own_directories.placed(machine.home)),
        _bounds(decision, made),
        tuple(provided),
        not open_hooks,
    )


def _bounds(decision: Decision, made: tree.Tree) -> dict[str, object]:
    """The places inside, for the policy: `own` of the session, and `given` by the machine.

    `tools` are the paths of `given` that lie behind PATH; `shares` are the writable ones.

    The paths are left out if the session's label has no room. Then the policy asks more.
    """
    home, top = decision.protected.home, decision.tree.top if decision.tree is not None else ""
    given = sorted({*made.tools, *made.read, *made.written})
    if sum(len(os.fsencode(place)) for place in (*given, *made.tools)) > BOUNDS_BYTES:
        return {}
    found = {"own": [home], "given": given, "tools": list(made.tools)}
    shares = [share.path for share in decision.terms.share if share.writable]
    return {**found, "shares": shares, "workspace": top, "net": decision.terms.net}


def _connect(uid: int, ports: Sequence[int]) -> tuple[bytes, ...]:
    found = network.commands(connectors.installed(), uid == 0, ports)
    return tuple(os.fsencode("\0".join(command)) for command in found)
