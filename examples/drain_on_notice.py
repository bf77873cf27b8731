"""Drains this machine when its provider announces that the machine will be taken away.

    python drain_on_notice.py URL [--until TEXT] [--header NAME:VALUE] [--every S] [--notice D]

Polls a metadata URL. The notice is there when the URL answers with status 200 and, with --until,
the answer contains this text. Then `holdfast drain` saves every session. The URL, the header and
the text are in the documentation of your provider. Some, for spot and preemptible machines:

    an URL that is 404 until the notice       python drain_on_notice.py URL
    an URL that answers TRUE or FALSE         python drain_on_notice.py URL --until TRUE
    an URL that lists scheduled events        python drain_on_notice.py URL --until Preempt
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.error
import urllib.request

ANSWER_S = 5.0  # for the URL to answer
ANSWER_BYTES = 1 << 16


def noticed(url: str, header: str, until: str) -> bool:
    """Whether the provider has announced the end of this machine."""
    name, _, value = header.partition(":")
    request = urllib.request.Request(url, headers={name: value.strip()} if name else {})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text = answer.read(ANSWER_BYTES).decode("utf-8", "replace")
            return answer.status == 200 and until in text
    except (urllib.error.URLError, OSError):
        return False  # no notice, or the metadata server is away for a moment


def main() -> int:
    parser = argparse.ArgumentParser(description="drain this machine on a notice of its provider")
    parser.add_argument("url")
    parser.add_argument("--until", default="", help="text in the answer that means a notice")
    parser.add_argument("--header", default="", help="a header of the request, NAME:VALUE")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two requests")
    parser.add_argument("--notice", default="90s", help="the time that the provider leaves")
    args = parser.parse_args()
    while not noticed(args.url, args.header, args.until):
        time.sleep(args.every)
    print(f"notice at {args.url}: draining", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "drain", "--notice", args.notice], check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
