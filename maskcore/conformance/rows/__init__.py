"""The contract, one function a row; importing this package fills ``registry.ROWS``."""

from maskcore.conformance.rows import (
    accuracy,
    corners,
    dtypes,
    equality,
    faults,
    gradients,
    masks,
    values,
)

__all__ = ["accuracy", "corners", "dtypes", "equality", "faults", "gradients", "masks", "values"]
