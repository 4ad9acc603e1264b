"""Measure what averaging gradients costs: `dlrun bench`.

Sizes and gradient sets become cases (`cases`), a program on the ranks times every way of reducing each case in turn
(`programs/allreduce.py`), and what it says becomes one value (`result`), shown as a table (`table`), a plot (`plot`)
and a comparison with an earlier run (`compare`). Nothing here imports dl_comm: the program on the ranks does.
"""
