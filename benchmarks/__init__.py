"""Measurements: speed, accuracy and the contract, of this library and of its peers."""
