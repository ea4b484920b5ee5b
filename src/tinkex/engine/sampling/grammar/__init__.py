"""Grammar-constrained decoding: which tokens may come next, as a mask over the vocabulary.

vocabulary  the model's tokens as llguidance reads them, and the limits of one grammar
child       the process in which a grammar is tried before the engine compiles it
trial       the engine's end of that process
compiling   grammars being compiled, fairly between lanes, and those kept
constraint  the state of one sample in its grammar
thinking    the state of its reasoning, if that has a budget

llguidance is an optional library: without it, samples with a grammar are refused by name.
"""
