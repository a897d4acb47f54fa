"""Names of the kinds of tasks. This module imports nothing."""

CLASSIFICATION, REGRESSION, MULTI_LABEL = "classification", "regression", "multi-label"
TASKS = (CLASSIFICATION, REGRESSION, MULTI_LABEL)
