"""tract, with its defaults."""

import tract


def load(path, inputs, outputs):
    runnable = tract.onnx().load(path).into_model().into_runnable()
    return lambda feed: [value.to_numpy() for value in runnable.run(list(feed.values()))]
