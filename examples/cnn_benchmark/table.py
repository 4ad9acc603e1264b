"""The table that both comparisons print."""

import statistics


def table(title, images, seconds, alone):
    """Return the table as text.

    ``seconds`` holds each way's seconds a step, turn by turn, the way without communication first; ``alone`` those
    that averaging the gradients takes by itself. ``images`` are those of all ranks in a step.
    """
    ms = {way: 1e3 * statistics.median(turns) for way, turns in seconds.items()}
    none, averaging = ms[next(iter(ms))], 1e3 * statistics.median(alone)
    lines = [
        f"{title}; milliseconds are medians of {len(alone)} turns",
        "",
        f"a step without communication: {none:.1f} ms, averaging alone (dl_comm): {averaging:.2f} ms, "
        f"together {none + averaging:.1f} ms",
        "",
        "| way | images/s, mean | standard deviation | ms a step | of together |",
        "|---|---|---|---|---|",
    ]
    for way, turns in seconds.items():
        rates = [images / one for one in turns]
        lines.append(
            f"| {way} | {statistics.mean(rates):.1f} | {statistics.pstdev(rates):.1f} | {ms[way]:.1f} | "
            f"{ms[way] / (none + averaging):.1%} |"
        )
    return "\n".join(lines)
