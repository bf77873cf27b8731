"""The command: `client -- CMD...` tests a client program, `host` the host of this installation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from holdfast.model.errors import HoldfastError
from holdfast.testing.conformance import client_cases, host_cases
from holdfast.testing.conformance.report import Result, as_json, chosen, line, summary


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.conformance",
        description="Checks a client or a host against the published contract.",
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print the results as JSON")
    shared.add_argument("--only", action="append", default=[], help="a case or a clause")
    kinds = parser.add_subparsers(dest="subject", required=True)
    client = kinds.add_parser("client", parents=[shared], help="test a client program")
    client.add_argument("command", nargs="+", help="the program, after --")
    host = kinds.add_parser("host", parents=[shared], help="test the host of this installation")
    host.add_argument("--home", help="the installation; default HOLDFAST_HOME or the account's own")
    host.add_argument("--as", dest="operator", help="the operator to act as")
    args = parser.parse_args(argv)
    results: list[Result]
    if args.subject == "client":
        results = client_cases.run(args.command, chosen(client_cases.CASES, args.only))
    else:
        cases = chosen(host_cases.CASES, args.only)
        results = host_cases.run(args.home, args.operator, cases)
    if not results:
        parser.error(f"no case for {' '.join(args.only)}")
    if args.json:
        print(as_json(args.subject, results))
    else:
        print("\n".join(map(line, results)), summary(results), sep="\n")
    return int(any(one.verdict == "failed" for one in results))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HoldfastError as e:
        sys.exit(f"{e.message}; {e.recover}")
