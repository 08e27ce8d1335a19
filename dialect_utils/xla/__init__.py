# SPDX-License-Identifier: Apache-2.0
"""XLA in a child process: the child and its worker, compile targets, what XLA says beside its programs."""

__all__ = ["at_hand", "child", "compile_targets", "rematerialization_warnings", "target_devices", "worker"]
