"""The cluster's metadata: brokers, topics, replicas, configs. Sans-IO.

`decide(command, image)` turns a command into records or rejects it; `apply(image, record)` turns a
committed record into the next image; handlers only read images.
"""
