# SPDX-License-Identifier: Apache-2.0
"""Networks of Linux namespaces with slow links, and the processes that run timed programs on them."""
