"""A campaign of faults against whole runs: `python -m benchmarks.campaign`.

    runs.py          commands as processes of their own session, the experiments they run, what they must give
    trials.py        one trial: a run, faults in it, `--resume` until it is whole, and the comparison
    processes.py     SIGKILL and SIGSTOP of any process at any moment
    links.py         a relay between server and clients that cuts, slows and stalls
    hostile.py       strangers and their messages
    surroundings.py  a disk that fills, a clock that jumps

Everything happens on loopback and in folders of the campaign's own. Every draw comes from the seed and the
trial's number.
"""
