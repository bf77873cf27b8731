"""Print the size and readability figures that the project watches; CONTRIBUTING.md has the limits.

python scripts/measure_code.py            # this checkout
python scripts/measure_code.py --worst 20 # also the sentences with most vague words
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdfast"
COLUMNS = 100
WORDS = """
who whom whose whoever what whatever it its they them their he his nobody somebody anybody everybody
everything nothing anything something one ones others another such those
"""
VAGUE = frozenset(WORDS.split())
SENTENCE = re.compile(r"[^.!?;:]+")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
NOT_PROSE = re.compile(r"#\s*(type:|noqa|pragma|!|-{3,})")


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that match, without generated code."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name and "_pb2" not in name]


def prose(path: Path) -> Iterator[str]:
    """The text for readers: docstrings and comments of code, paragraphs of Markdown."""
    text = path.read_text()
    if path.suffix == ".md":
        fenced = False
        for line in text.splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced and not line.startswith(("    ", "|")):
                yield line
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not NOT_PROSE.match(token.string):
            yield token.string


def sentences(path: Path) -> Iterator[tuple[int, int, str]]:
    """Words, vague words and text of each sentence."""
    for paragraph in prose(path):
        for sentence in SENTENCE.findall(CODE.sub(" ", paragraph)):
            words = [word.lower() for word in WORD.findall(sentence)]
            if len(words) > 1:
                yield len(words), sum(word in VAGUE for word in words), " ".join(sentence.split())


def folder(path: Path) -> str:
    return str(path.parent.relative_to(ROOT))


def table(title: str, rows: list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {value:>8}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    args = parser.parse_args()
    code = tracked("src/*.py")
    texts = {path: path.read_text() for path in code}
    lines = {path: text.count("\n") for path, text in texts.items()}
    print(f"{sum(lines.values())} lines of src in {len(code)} modules")

    size, untyped = Counter[str](), Counter[str]()
    for path, text in texts.items():
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        size[package] += lines[path]
        untyped[package] += len(re.findall(r"\bAny\b", text))
    shares = [(name, 1000 * untyped[name] / count) for name, count in size.items()]
    shares.append(("all of src", 1000 * sum(untyped.values()) / sum(size.values())))
    table(
        "Any per 1,000 lines",
        [(name, f"{share:.1f}") for name, share in sorted(shares, key=lambda row: -row[1])],
    )

    folders = Counter(folder(path) for path in code if path.name != "__init__.py")
    table("modules in the largest folders", [(n, str(c)) for n, c in folders.most_common(5)])
    longest = sorted(lines.items(), key=lambda row: -row[1])[:5]
    table("lines of the longest modules", [(str(p.relative_to(ROOT)), str(n)) for p, n in longest])

    everything = tracked("*.py", "*.md")
    long, words, vague = Counter[str](), Counter[str](), Counter[str]()
    worst: list[tuple[float, str, str]] = []
    for path in everything:
        name = folder(path)
        if path.suffix == ".md":  # `ruff check` counts those of code
            long[name] += sum(len(line) > COLUMNS and "](" not in line for line in prose(path))
        for count, unclear, text in sentences(path):
            words[name] += count
            vague[name] += unclear
            if count >= 8:
                worst.append((unclear / count, str(path.relative_to(ROOT)), text))
    table(
        f"lines of documents over {COLUMNS} columns: {sum(long.values())} in all",
        [(name, str(count)) for name, count in long.most_common(10) if count],
    )
    table(
        f"vague words in prose: {sum(vague.values()) / sum(words.values()):.1%} in all",
        [
            (name, f"{vague[name] / words[name]:.1%}")
            for name in sorted(words, key=lambda name: -vague[name] / words[name])
            if words[name] > 100
        ],
    )
    for share, name, text in sorted(worst, reverse=True)[: args.worst]:
        print(f"\n{share:.0%} {name}\n    {text[:240]}")


if __name__ == "__main__":
    main()
