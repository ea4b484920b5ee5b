"""Custom losses: traced by a client, uploaded as a graph, evaluated outside the engine's process.

graph        the uploaded nodes, read and checked against the list of operations
operations   that list: all that such a loss can reach
arithmetic   a checked graph evaluated on tensors, node by node, its work counted
child        the process in which that happens
evaluator    the engine's end: starts those processes, feeds them, outlives them
evaluation   a custom loss in one training call
"""
