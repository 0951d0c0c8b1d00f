"""The lab: what moving a sample between processes costs, and where the time goes.

::

    command ──► experiments: quick overhead speedup workers hide images staging echo peers      compare, doctor
                   │ turns: what to measure, row by row
                   ▼
                series ─────► each turn in a process of its own (turns), round by round
                   ▼
                results       one JSON and one CSV for each experiment, with its schema; of `quick` if asked for
                   ▼
                views ──────► text (terminal), page and plots (`report.html`)

    bench/ ──► program: the same turns, rounds and views for a benchmark of its own, with verdicts

A wing: it uses the core through its public names and the transport interface, and the core knows nothing of it.
"""
