# SPDX-License-Identifier: Apache-2.0
"""Plans the same problems with two checkouts: the problems, the processes that plan, and the comparison of costs."""
