"""Run models in a runtime's environment: ``python worker.py ADAPTER``.

It needs NumPy, and nothing of this repository. Each line of standard input is a request in JSON to
run a model, and a line of standard output is the result, with arrays in base64. What the runtime
prints goes to standard error.
"""

import base64
import json
import os
import runpy
import sys
import time

import numpy as np


def decode(array):
    return (
        np.frombuffer(base64.b64decode(array["data"]), array["type"]).reshape(array["shape"]).copy()
    )


def encode(value):
    value = np.asarray(value)
    return {
        "type": value.dtype.name,
        "shape": value.shape,
        "data": base64.b64encode(value.tobytes()).decode(),
    }


def median_time(run, feed, n_runs):
    """Return the median time of several runs, in milliseconds of a processor."""
    times = []
    for _ in range(n_runs):
        start = time.process_time()
        run(feed)
        times.append(time.process_time() - start)
    return 1000 * float(np.median(times))


def main():
    # What the runtime, and programs that it calls, read and print has no part in this.
    jobs = os.fdopen(os.dup(0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.tracebacklimit = 0  # who reads of an import that failed wants to know what did, not where
    sys.path.pop(0)  # this folder: its files are called like the packages
    load = runpy.run_path(sys.argv[1])["load"]
    print(json.dumps({}), file=answers, flush=True)
    for line in jobs:
        job = json.loads(line)
        try:
            feeds = [{name: decode(array) for name, array in feed.items()} for feed in job["feeds"]]
            run = load(job["model"], feeds[0], job["outputs"])
            answer = {"outputs": [[encode(value) for value in run(feed)] for feed in feeds]}
            answer["remark"] = run.remark() if hasattr(run, "remark") else ""
            if job.get("timed_runs"):
                answer["milliseconds"] = median_time(run, feeds[0], job["timed_runs"])
        except BaseException as error:  # runtimes raise what they like, SystemExit among it
            answer = {"error": f"{type(error).__name__}: {error}"[:20000]}
        print(json.dumps(answer), file=answers, flush=True)


main()
