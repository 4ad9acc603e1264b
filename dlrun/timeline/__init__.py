"""What every rank did when: `dlrun launch --timeline` and `dlrun timeline`.

dl_comm leaves a ring of records per rank in the run directory; `rings` reads them, `trace` merges them into one Chrome
trace (Perfetto and chrome://tracing open it), and `summary` says what a person wants to know of it.
"""
