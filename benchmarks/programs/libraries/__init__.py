# SPDX-License-Identifier: Apache-2.0
"""Programs of public libraries, each as its users write it; the extra `benchmarks` installs what they need."""
