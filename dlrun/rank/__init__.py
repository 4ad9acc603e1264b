"""The shim: what runs on every rank before the user's script, ``python -m dlrun.rank --spec FILE -- script args``.

Each rank is two processes. The *watcher* is the one that the site's launcher started; it forks the *script*, which
is the one that trains. So whatever becomes of the script (an exception, ``os._exit``, SIGKILL, a segmentation fault)
there is somebody left who knows which rank it was, tells ``dlrun launch``, and leaves nothing behind.

================ ======================================================================================
identity.py      which rank this is, from the launcher's variables: one table, the launcher used first
pinning.py       GPU mask, core affinity and thread count, set before MPI or CUDA wake up
gpus.py          the GPUs of the node, which of them is near, and the variable that masks them
mps.py           NVIDIA's service for GPUs in exclusive mode that ranks share
torchrun.py      what torchrun would set, where that is asked for
wire.py          the messages between a watcher and ``dlrun launch``
proc.py          what the kernel says of a process: its children, the signals it handles
communicating.py whether the script could be talking to other ranks at all
stdin.py         the input of ``dlrun launch`` on one rank, as it is read
watch.py         the watcher: output, signals, how the script ended
script.py        the script: runs it as ``__main__`` and says where an exception came from
================ ======================================================================================

Standard library only, and little of it: this is paid on every rank of every job.
"""
