"""OpenCV's dnn module, 4 and 5."""

import cv2


def load(path, inputs, outputs):
    net = cv2.dnn.readNetFromONNX(path)

    def run(feed):
        for name, value in feed.items():
            net.setInput(value, name)
        return net.forward(outputs)

    return run
