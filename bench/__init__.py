"""Side-by-side measurements of terminal-session tools, Holdfast included, in one run.

    python -m bench                          # every tool found, every measure
    python -m bench --peers raw,tmux,holdfast --only echo,bulk_plain_1 --rounds 5 --mb 50 \
        --out docs/figures
    python -m bench --peers raw,holdfast --tree before=OTHER/src    # two source trees of Holdfast
    python -m bench scale                    # costs by number of sessions, up to 1,000
    python -m bench.profile                  # where Holdfast's own time goes
    python -m bench.operators                # seizing, halting, the door, the record
    python -m bench --only echo,bulk_plain_1 \
        --peers raw,tmux,ssh+tmux,holdfast,holdfast-relay           # from another machine
    python -m bench.elsewhere                # ... return after a relay restart, 100 viewers
    python -m bench.relay                    # the relay alone, with up to 2,000 connections

The design. Absolute numbers of a shared machine are worth little: within one run the bare terminal
itself spread by a factor of two. So a round measures each tool once, in shuffled order. A ratio is
taken against the bare terminal (or tmux) *of the same round*. The report gives the median of these
ratios and their spread. Differences below the spread are not differences.

    terminal.py    a program in its own terminal, and reading that terminal
    peers.py       one adapter per tool
    programs.py    the programs inside the sessions
    measures.py    the measures: latency and throughput
    standing.py    ... memory, idling, survival; the scale table
    processes.py   memory, CPU and wake-ups from /proc
    targets.py     the target figures, in one table, and the verdicts
    report.py      tables and JSON
    profile.py     Holdfast's hops, one by one
    operators.py   operators among each other; with stage.py (an installation with two of them),
                   door.py (the cost of an act), halt.py (each way to halt, by the host's own
                   calls), record.py (appending, verifying)
    elsewhere.py   through a relay: reconnecting, many viewers
    relay.py       a relay alone, between scripted ends

Every process that an adapter starts carries BENCH_TAG in its environment, so the harness finds and
ends processes without guessing by name.
"""
