# SPDX-License-Identifier: Apache-2.0
"""The theory of array redistribution: meshes, layouts, typed steps, exact search. No MLIR, no JAX."""
