"""The conformance kit on other libraries; ``python -m benchmarks.peers`` runs them all.

One module a library: how it is called, what it leaves out and which rows it does not claim, each
with the reason. A peer is tested on what it says it does: inputs that it is not for (an empty row
in a library without padding) are replaced by ordinary ones, and ordinary rounding is allowed.
"""
