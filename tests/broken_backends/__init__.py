"""Modules that are wrong in one way each, for the test that the kit says which.

Each takes ``maskcore.spec`` and replaces one thing by a fault that a published library has, or had.
``CAUGHT_BY`` is the contract row that has to name it.
"""
