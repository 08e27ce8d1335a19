# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans and reports: SVG and HTML by hand, a plain text twin of each; no MLIR, no jax, nothing from the network.

`placements` says who holds which part of the array after each step; `tile_pictures` draws it, `memory` and `traffic_map` draw
what it takes; `drawing` puts a plan's pictures together, `report_page` those of a module; `trace` is for Perfetto.
"""
