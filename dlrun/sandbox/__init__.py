"""Runs that leave the user's files as they are: `dlrun verify`, `scale` and `tune` start a script many times.

Each run works in a folder of its own that looks like the user's (`place`): what it writes comes there, so that no run
overwrites a file of the user's or goes on from what another has left. A link is replaced before it is written to
(`loose`); what absolute paths lead to is put back afterwards (`outside`).
"""
