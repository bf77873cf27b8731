"""Files that a program reads without being told, and does what they say: a Makefile, a hook, a configuration that names programs (P3).

A table, one row for each program, with the reason why its files matter. It names candidates: whether they exist, and who wrote them, is for others to find out (host/writers.py). A row holds
what can decide what is run, not everything that is read: the sources that `make` compiles are named in the Makefile, and who wrote that one is named.

1. What is searched for from the working directory upwards (`up`) is listed for every directory above, as far as UP_MAX: which one the program takes depends on which exist.
2. An option that names the file (`-f`) replaces those that are looked for; one that says where to begin (`-C`) moves the search.
3. A word that cannot be known hides nothing: all that may be read is listed still.
4. Without a known directory only what lies in the home can be named.
5. An option whose value may be left out takes none here: what follows it could be another option, and that one's file would be hidden.

What a table cannot know: what those files include in turn (an `include`, a `require`, core.hooksPath), plugins, caches of compiled files, whatever the sources do. `docs/writers.md` lists it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from posixpath import dirname, join, normpath
from typing import Final, NamedTuple

from holdfast.core.effects import operands
from holdfast.core.facts import Command

UP_MAX: Final = 24  # directories above
FILES_MAX: Final = 256
INTO_MAX: Final = 8  # operands that are taken for directories


class Reads(NamedTuple):
    why: str
    here: str = ""  # names in the working directory
    up: str = ""  # in it and every directory above
    home: str = ""
    named: str = ""  # options whose value is a file that is read instead
    besides: str = ""  # options whose value is a file that is read too
    moves: str = ""  # options whose value is the directory to begin in
    valued: str = ""  # other options with a value
    script: bool = False  # its first operand is a file that it runs
    all: bool = False  # each of its operands is
    into: bool = False  # an operand may be a directory in which it looks for the same


_SSH: Final = Reads(
    "ProxyCommand, LocalCommand and Match exec name programs",
    home=".ssh/config",
    named="-F",
    valued="-i -l -p -P -o -J -L -R -D -W -b -c -e -m -S -E -B -Q -w -I -O",
)
_NPM: Final = Reads(
    "its scripts are run; .npmrc names the shell and a registry",
    up="package.json .npmrc",
    home=".npmrc",
    moves="--prefix -C --dir --cwd",
    valued="-w --workspace",
    into=True,
)
_PYTEST: Final = Reads(
    "conftest.py is run, the others name plugins and options that do",
    up="conftest.py pytest.ini .pytest.ini tox.ini setup.cfg pyproject.toml",
    named="-c --config-file",
    moves="--rootdir",
    valued="-k -m -p -n -o --maxfail --tb -W",
    into=True,
)
_PIP: Final = Reads(
    "setup.py is run, pyproject.toml names what builds",
    here="setup.py pyproject.toml setup.cfg",
    home=".config/pip/pip.conf .pip/pip.conf",
    besides="-r --requirement -c --constraint",
    valued="-t -i -f",
    into=True,
)
_COMPOSE: Final = Reads(
    "what is run, mounted and published",
    up="compose.yaml compose.yml docker-compose.yaml docker-compose.yml compose.override.yaml docker-compose.override.yml .env",
    named="-f --file",
    besides="--env-file",
    moves="--project-directory",
    valued="-p --project-name --profile",
)
_VI: Final = Reads(
    "runs commands when it starts; .exrc where that is on",
    here=".exrc .vimrc .nvimrc .nvim.lua",
    home=".vimrc .vim/vimrc .exrc .config/nvim/init.vim .config/nvim/init.lua",
    named="-u",
    valued="-c -S -T -i --cmd",
)
_LESS: Final = Reads(
    "keys may be bound to commands",
    home=".lesskey .config/lesskey .less",
    named="-k --lesskey-file",
)
_MAKE: Final = Reads(
    "its rules are run",
    here="GNUmakefile makefile Makefile BSDmakefile",
    named="-f --file --makefile",
    moves="-C --directory",
    valued="-I --include-dir -o -W",
)
_TERRAFORM: Final = Reads(
    "providers and provisioners run programs; every *.tf in the directory is read: the directory itself is named",
    here=". main.tf variables.tf terraform.tfvars .terraform.lock.hcl",
    home=".terraformrc",
    besides="-var-file --var-file",
)
_ANSIBLE: Final = Reads(
    "names plugins, connection programs and hosts",
    here="ansible.cfg hosts",
    home=".ansible.cfg",
    besides="-i --inventory --vault-password-file",
    valued="-e -l -t -u -f -m -a",
    all=True,
)
_CARGO: Final = Reads(
    "build.rs is run; .cargo/config.toml names linkers, runners and aliases",
    up="Cargo.toml build.rs .cargo/config.toml .cargo/config rust-toolchain.toml rust-toolchain",
    home=".cargo/config.toml .cargo/config",
    besides="--manifest-path --config",
    moves="-C",
    valued="-p -j --features --target --profile",
)
_GRADLE: Final = Reads(
    "build scripts are run",
    up="build.gradle build.gradle.kts settings.gradle settings.gradle.kts gradle.properties gradle/wrapper/gradle-wrapper.properties gradle/wrapper/gradle-wrapper.jar",
    home=".gradle/gradle.properties .gradle/init.gradle",
    besides="-b --build-file -c --settings-file -I --init-script",
    moves="-p --project-dir",
    valued="-x -g",
)
_SHELL: Final = Reads(
    "the script is run; without one, the files with which it begins",
    besides="--rcfile --init-file",
    valued="-o +o -O +O",
    script=True,
)
_SCRIPT: Final = Reads("the script is run", script=True)
_TMUX: Final = Reads(
    "runs commands when its server starts",
    home=".tmux.conf .config/tmux/tmux.conf",
    named="-f",
    valued="-L -S -c -T",
)

READS: Final[dict[str, Reads]] = {
    "make": _MAKE,
    "gmake": _MAKE,
    "bmake": _MAKE,
    "remake": _MAKE,
    "ninja": Reads(
        "its rules are run", here="build.ninja", named="-f", moves="-C", valued="-j -l -k -t -d -w"
    ),
    "just": Reads(
        "its recipes are run",
        up="justfile Justfile .justfile .env",
        named="-f --justfile",
        besides="--dotenv-path",
        moves="-d --working-directory",
        valued="--set --shell",
    ),
    "task": Reads(
        "its tasks are run",
        up="Taskfile.yml taskfile.yml Taskfile.yaml taskfile.yaml",
        named="-t --taskfile",
        moves="-d --dir",
    ),
    "rake": Reads(
        "it is Ruby that is run",
        up="Rakefile rakefile Rakefile.rb rakefile.rb",
        named="-f --rakefile",
        besides="-R --rakelibdir",
    ),
    "bundle": Reads(
        "a Gemfile is Ruby that is run",
        up="Gemfile gems.rb .bundle/config",
        home=".bundle/config",
        named="--gemfile",
    ),
    "npm": _NPM,
    "npx": _NPM,
    "yarn": _NPM._replace(up="package.json .npmrc .yarnrc .yarnrc.yml", home=".npmrc .yarnrc"),
    "pnpm": _NPM._replace(up="package.json .npmrc .pnpmfile.cjs pnpm-workspace.yaml"),
    "bun": _NPM._replace(up="package.json bunfig.toml .npmrc"),
    "deno": Reads(
        "its tasks are run",
        up="deno.json deno.jsonc package.json",
        named="-c --config",
        script=True,
    ),
    "pytest": _PYTEST,
    "py.test": _PYTEST,
    "tox": Reads(
        "its commands are run",
        up="tox.ini setup.cfg pyproject.toml setup.py",
        named="-c --conf",
        valued="-e -p",
    ),
    "nox": Reads(
        "it is Python that is run", here="noxfile.py", named="-f --noxfile", valued="-s -e -k -t"
    ),
    "pip": _PIP,
    "pip3": _PIP,
    "pipx": _PIP,
    "uv": _PIP._replace(up="pyproject.toml uv.toml .python-version", moves="--directory --project"),
    "poetry": Reads(
        "names what builds and scripts", up="pyproject.toml poetry.toml", moves="-C --directory"
    ),
    "hatch": Reads("names scripts and hooks", up="pyproject.toml hatch.toml hatch_build.py"),
    "pre-commit": Reads("its hooks are run", up=".pre-commit-config.yaml", named="-c --config"),
    "mypy": Reads(
        "plugins are run", up="mypy.ini .mypy.ini pyproject.toml setup.cfg", named="--config-file"
    ),
    "pylint": Reads("init-hook is run", up=".pylintrc pylintrc pyproject.toml", named="--rcfile"),
    "cargo": _CARGO,
    "go": Reads(
        "names what is built; generate runs what sources say", up="go.mod go.work", moves="-C"
    ),
    "gradle": _GRADLE,
    "gradlew": _GRADLE,
    "mvn": Reads(
        "plugins are run",
        up="pom.xml .mvn/extensions.xml .mvn/maven.config .mvn/jvm.config",
        home=".m2/settings.xml .mavenrc",
        named="-f --file",
        besides="-s --settings",
    ),
    "ant": Reads("its targets are run", here="build.xml", named="-f -file -buildfile"),
    "sbt": Reads(
        "it is Scala that is run", here="build.sbt project/plugins.sbt project/build.properties"
    ),
    "cmake": Reads(
        "execute_process and custom commands are run",
        here="CMakeLists.txt CMakePresets.json CMakeCache.txt",
        besides="-C -P",
        moves="-S",
        valued="-B -G -D --build --install",
        into=True,
    ),
    "meson": Reads(
        "run_command is run",
        here="meson.build meson_options.txt meson.options",
        moves="-C",
        into=True,
    ),
    "scons": Reads(
        "it is Python that is run",
        here="SConstruct Sconstruct sconstruct",
        named="-f --file",
        moves="-C",
    ),
    "bazel": Reads(
        "rules are run",
        up="WORKSPACE WORKSPACE.bazel MODULE.bazel .bazelrc BUILD BUILD.bazel",
        home=".bazelrc",
    ),
    "docker build": Reads(
        "its commands are run",
        here="Dockerfile .dockerignore",
        named="-f --file",
        valued="-t --tag --build-arg --target --platform",
        into=True,
    ),
    "docker buildx": Reads(
        "its commands are run",
        here="Dockerfile .dockerignore docker-bake.hcl docker-bake.json",
        named="-f --file",
        valued="-t --tag --build-arg --target --platform",
        into=True,
    ),
    "podman build": Reads(
        "its commands are run",
        here="Containerfile Dockerfile .containerignore .dockerignore",
        named="-f --file",
        valued="-t --tag --build-arg --target --platform",
        into=True,
    ),
    "docker compose": _COMPOSE,
    "podman compose": _COMPOSE,
    "docker-compose": _COMPOSE,
    "podman-compose": _COMPOSE,
    "docker": Reads("names the engine and helpers", home=".docker/config.json"),
    "vagrant": Reads("it is Ruby that is run", up="Vagrantfile"),
    "terraform": _TERRAFORM,
    "tofu": _TERRAFORM,
    "packer": _TERRAFORM._replace(here="."),
    "pulumi": Reads("a program is run", up="Pulumi.yaml"),
    "ansible": _ANSIBLE._replace(all=False),
    "ansible-playbook": _ANSIBLE,
    "kubectl": Reads(
        "exec plugins of its configuration are run",
        home=".kube/config",
        named="--kubeconfig",
        besides="-f --filename",
    ),
    "helm": Reads(
        "names what is installed",
        here="Chart.yaml values.yaml",
        home=".kube/config",
        besides="-f --values",
        into=True,
    ),
    "ssh": _SSH,
    "scp": _SSH,
    "sftp": _SSH,
    "rsync": Reads("by ssh", home=".ssh/config"),
    "mosh": _SSH,
    "autossh": _SSH,
    "vim": _VI,
    "vi": _VI,
    "nvim": _VI,
    "view": _VI,
    "ex": _VI,
    "vimdiff": _VI,
    "emacs": Reads(
        "runs what its files say",
        here=".dir-locals.el",
        home=".emacs .emacs.d/init.el .config/emacs/init.el",
        besides="-l --load",
    ),
    "nano": Reads(
        "names spellers and formatters", home=".nanorc .config/nano/nanorc", named="-f --rcfile"
    ),
    "less": _LESS,
    "more": _LESS,
    "man": _LESS,
    "gdb": Reads(
        "runs commands when it starts",
        here=".gdbinit",
        home=".gdbinit .config/gdb/gdbinit",
        besides="-x --command -ix -iex",
    ),
    "lldb": Reads(
        "runs commands when it starts", here=".lldbinit", home=".lldbinit", besides="-s --source"
    ),
    "psql": Reads(
        "runs commands when it starts; \\! runs programs",
        home=".psqlrc",
        besides="-f --file",
        valued="-d -h -p -U -c -v",
    ),
    "mysql": Reads(
        "names helpers", home=".my.cnf", besides="--defaults-file --defaults-extra-file"
    ),
    "sqlite3": Reads(
        "runs commands when it starts; .shell runs programs",
        home=".sqliterc .config/sqlite3/sqliterc",
        named="-init --init",
    ),
    "curl": Reads("options of every call", home=".curlrc .netrc", named="-K --config"),
    "wget": Reads(
        "options of every call; use_askpass runs a program", home=".wgetrc .netrc", named="--config"
    ),
    "gpg": Reads(
        "names helper programs", home=".gnupg/gpg.conf .gnupg/gpg-agent.conf", named="--options"
    ),
    "screen": Reads(
        "runs commands when it starts", home=".screenrc", named="-c", valued="-S -s -t -h -e -p -X"
    ),
    "tmux": _TMUX,
    "bash": _SHELL._replace(home=".bashrc .bash_profile .bash_login .profile .inputrc"),
    "sh": _SHELL._replace(home=".profile"),
    "dash": _SHELL._replace(home=".profile"),
    "ksh": _SHELL._replace(home=".profile .kshrc"),
    "zsh": _SHELL._replace(home=".zshenv .zprofile .zshrc .zlogin"),
    "fish": _SHELL._replace(home=".config/fish/config.fish"),
    "source": _SCRIPT,
    ".": _SCRIPT,
    "direnv": Reads(
        "it is bash that is run in every directory below",
        up=".envrc .env",
        home=".config/direnv/direnvrc .direnvrc",
    ),
    "mise": Reads(
        "names tools, tasks and hooks",
        up=".mise.toml mise.toml .tool-versions",
        home=".config/mise/config.toml",
    ),
    "asdf": Reads("names tools", up=".tool-versions", home=".asdfrc .tool-versions"),
    "crontab": Reads("its lines are run later", script=True),
    "at": Reads("is run later", besides="-f", valued="-q -t"),
    "batch": Reads("is run later", besides="-f"),
    "xargs": Reads("arguments", besides="-a --arg-file"),
    "env": Reads("variables", besides="-f --file"),
    "dotenv": Reads("variables", here=".env", besides="-f --file"),
    "foreman": Reads(
        "its lines are run", here="Procfile .env", named="-f --procfile", besides="-e --env"
    ),
    "honcho": Reads(
        "its lines are run", here="Procfile .env", named="-f --procfile", besides="-e --env"
    ),
    "supervisord": Reads(
        "its programs are run", here="supervisord.conf", named="-c --configuration"
    ),
    "awk": Reads("it is a program", besides="-f --file", valued="-F -v"),
    "gawk": Reads("it is a program", besides="-f --file -i --include", valued="-F -v"),
    "sed": Reads("e and w run and write", besides="-f --file", valued="-e"),
    "perl": _SCRIPT._replace(valued="-I -M -m"),
    "ruby": _SCRIPT._replace(up=".ruby-version", moves="-C -X", valued="-r -E -I"),
    "node": _SCRIPT._replace(up="package.json", besides="-r --require --import --env-file"),
    "php": _SCRIPT._replace(here=".user.ini php.ini", named="-c"),
    "lua": _SCRIPT,
    "Rscript": _SCRIPT._replace(here=".Rprofile .Renviron", home=".Rprofile .Renviron"),
    "R": Reads(
        "run when it starts", here=".Rprofile .Renviron", home=".Rprofile .Renviron", besides="-f"
    ),
    "expect": _SCRIPT._replace(besides="-f"),
    "tclsh": _SCRIPT,
    "osascript": _SCRIPT,
    "julia": _SCRIPT._replace(up="Project.toml", home=".julia/config/startup.jl"),
    "systemctl": Reads("user units are run", home=".config/systemd/user"),
}
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_MODULES: Final = {
    "pytest": "pytest",
    "pip": "pip",
    "tox": "tox",
    "nox": "nox",
    "pre_commit": "pre-commit",
    "mypy": "mypy",
    "pylint": "pylint",
}

# git: what its configuration and attributes name is run (filters, diff and merge drivers, fsmonitor, an editor, a pager, aliases), and hooks for each of its commands.
_GIT_DIR: Final = ".git/config .git/config.worktree .git/info/attributes"
_GIT: Final = Reads(
    "configuration names programs",
    up=f".git {_GIT_DIR} .gitattributes",
    home=".gitconfig .config/git/config .config/git/attributes",
    moves="-C",
    valued="-c --git-dir --work-tree --exec-path",
)
_COMMIT: Final = "pre-commit prepare-commit-msg commit-msg post-commit post-rewrite pre-auto-gc"
_INDEX: Final = "post-index-change fsmonitor-watchman"
_HOOKS: Final = {
    "commit": _COMMIT,
    "merge": f"pre-merge-commit post-merge {_COMMIT}",
    "pull": f"pre-merge-commit post-merge pre-rebase post-checkout {_COMMIT}",
    "rebase": f"pre-rebase post-checkout {_COMMIT}",
    "am": f"applypatch-msg pre-applypatch post-applypatch {_COMMIT}",
    "cherry-pick": _COMMIT,
    "revert": _COMMIT,
    "checkout": "post-checkout",
    "switch": "post-checkout",
    "worktree": "post-checkout",
    "clone": "post-checkout",
    "submodule": "post-checkout",
    "push": "pre-push push-to-checkout",
    "gc": "pre-auto-gc",
    "send-email": "sendemail-validate",
    "receive-pack": "pre-receive update proc-receive post-receive post-update",
    "stash": "",
    "reset": "",
    "add": "",
    "rm": "",
    "mv": "",
    "restore": "",
    "status": "",
    "fetch": "",
    "branch": "",
    "tag": "",
    "update-ref": "",
    "bisect": "post-checkout",
}
_REFS: Final = frozenset(
    (
        "commit",
        "merge",
        "pull",
        "rebase",
        "am",
        "cherry-pick",
        "revert",
        "push",
        "fetch",
        "branch",
        "tag",
        "update-ref",
        "stash",
        "reset",
        "checkout",
        "switch",
        "clone",
        "bisect",
        "receive-pack",
    )
)


def implied(command: Command, cwd: str | None, home: str | None = None) -> tuple[str, ...]:
    """Candidates, most important first, no more than FILES_MAX; whether they exist is not known here."""
    texts = [word.text for word in command.words]
    row = _row(command.name, texts)
    if row is None:
        return ()
    found = operands(command.words, " ".join((row.named, row.besides, row.moves, row.valued)))
    options, plain = (
        [(name, word.text) for name, word in found.values],
        [word.text for word in found.plain],
    )
    where = cwd
    for name, value in options:
        if name in row.moves.split():
            where = (
                None
                if value is None or (where is None and not value.startswith("/"))
                else normpath(join(where or "/", value))
            )
    instead = [value for name, value in options if name in row.named.split()]
    files = [
        value for name, value in options if name in row.named.split() or name in row.besides.split()
    ]
    if row.script or row.all:
        files += (
            plain
            if row.all
            else plain[: SCRIPT_AFTER if plain and (plain[0] or "").startswith("+") else 1]
        )
    candidates = [*(_at(where, value) for value in files if value is not None)]
    if not instead or None in instead:
        candidates += [_at(where, name) for name in row.here.split()]
        candidates += _above(where, row.up.split())
        for text in plain[:INTO_MAX] if row.into else ():
            if text and (inside := _at(where, text)) is not None:
                candidates += [
                    *(join(inside, name) for name in row.here.split()),
                    *_above(inside, row.up.split()),
                ]
    if command.name == "git":
        hooks = _hooks(next((text for text in plain if text), None))
        named = [
            _at(where, value)
            for name, value in options
            if name == "--git-dir" and value is not None
        ]
        candidates += [
            join(one, name.removeprefix(".git/"))
            for one in named
            if one is not None
            for name in (*_GIT_DIR.split(), *hooks)
        ]
        candidates += _above(where, hooks)
    elif _PYTHON.fullmatch(command.name):
        candidates += _module(where, texts)
    if home is not None and (not row.script or not plain or command.name not in _LOGINS):
        candidates += [join(home, name) for name in row.home.split()]
    return tuple(dict.fromkeys(one for one in candidates if one is not None))[:FILES_MAX]


SCRIPT_AFTER: Final = (
    4  # words, where the first of them is a shell's option that begins with a plus
)
_LOGINS: Final = frozenset(
    ("bash", "sh", "dash", "ksh")
)  # with a script, they read none of their own files


def _row(name: str, texts: Sequence[str | None]) -> Reads | None:
    if name == "git":
        return _GIT
    if _PYTHON.fullmatch(name):
        module = next(
            (after for text, after in zip(texts, texts[1:], strict=False) if text == "-m"), None
        )
        row = (
            READS[_MODULES[module]]
            if module in _MODULES
            else _SCRIPT._replace(valued="-W -X", up="pyvenv.cfg")
        )
        return row._replace(script="-c" not in texts and "-m" not in texts)
    return next(
        (READS[f"{name} {text}"] for text in texts if f"{name} {text}" in READS), None
    ) or READS.get(name)


def _module(where: str | None, texts: Sequence[str | None]) -> Iterator[str | None]:
    """`python -m`: a module of that name in the working directory comes before all others."""
    for text, after in zip(texts, texts[1:], strict=False):
        if text == "-m" and after is not None and re.fullmatch(r"[\w.]+", after):
            path = after.replace(".", "/")
            yield from (
                _at(where, name)
                for name in (
                    f"{path}.py",
                    f"{path}/__main__.py",
                    f"{path}/__init__.py",
                    f"{path.split('/')[0]}/__init__.py",
                )
            )


def _hooks(command: str | None) -> list[str]:
    """A command that is not known may be an alias of any."""
    if command is not None and command in _HOOKS:
        names = [
            *_HOOKS[command].split(),
            *_INDEX.split(),
            *(("reference-transaction",) if command in _REFS else ()),
        ]
    elif command is None:
        names = [*dict.fromkeys(" ".join(_HOOKS.values()).split())]
    else:
        names = []
    return [
        *(f".git/hooks/{name}" for name in names),
        *((".gitmodules",) if command == "submodule" else ()),
    ]


def _above(where: str | None, names: Iterable[str]) -> list[str]:
    wanted, found, at = [*names], list[str](), where
    for _ in range(UP_MAX):
        if at is None or not wanted:
            break
        found += [join(at, name) for name in wanted]
        if at == "/":
            break
        at = dirname(at)
    return found


def _at(where: str | None, name: str) -> str | None:
    if name.startswith("/"):
        return normpath(name)
    return None if where is None or name == "-" else normpath(join(where, name))
