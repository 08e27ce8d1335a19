# SPDX-License-Identifier: Apache-2.0
"""Training steps of installed trainers and models, as they lower them."""
