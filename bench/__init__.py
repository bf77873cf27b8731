"""Side-by-side measurements of terminal-session tools, Holdfast among them, in one run on one machine.

    python -m bench                                   # every tool found, every measure
    python -m bench --peers raw,tmux,holdfast --only echo,bulk_plain_1 --rounds 5 --mb 50 --out docs/figures
    python -m bench --peers raw,holdfast --tree before=OTHER/src     # two source trees of Holdfast in one run
    python -m bench.profile                           # where Holdfast's own time goes
    python -m bench.operators                         # seizing, halting, the door, the record
    python -m bench --only echo,bulk_plain_1 --peers raw,tmux,ssh+tmux,holdfast,holdfast-relay     # from elsewhere
    python -m bench.elsewhere                         # ... coming back after a restart of the relay, 100 viewers
    python -m bench.relay                             # the relay by itself, with up to 2,000 connections

Why it is built this way. Absolute numbers of a shared machine are worth little: within one run the bare
terminal itself spread by a factor of two. So a round measures each tool once, in shuffled order; a ratio is
taken against the bare terminal (or tmux) *of the same round*; and what is reported is the median of those
ratios, with their spread beside it. Differences below the spread are not differences.

    terminal.py    a program in a terminal of its own, and reading it
    peers.py       one adapter per tool
    programs.py    what runs inside the sessions
    measures.py    what is measured: quickness and throughput
    standing.py    ... memory, idling, survival
    processes.py   memory, CPU and wake-ups from /proc
    targets.py     the figures to reach, in one table, and the verdicts
    report.py      tables and JSON
    profile.py     Holdfast's hops, one by one
    operators.py   operators among each other; with stage.py (an installation with two of them), door.py (what an act costs),
                   halt.py (each way to halt, by the host's own calls), record.py (appending, verifying)
    elsewhere.py   through a relay: coming back, many viewers
    relay.py       a relay by itself, between scripted ends

Every process that an adapter starts carries BENCH_TAG in its environment, so finding and ending them never
guesses by name.
"""
