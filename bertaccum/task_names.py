"""Names of the kinds of tasks. This module imports nothing."""

CLASSIFICATION, REGRESSION, MULTI_LABEL = "classification", "regression", "multi-label"
TASKS = (CLASSIFICATION, REGRESSION, MULTI_LABEL)
# How transformers names each task, the `problem_type` in a config.json.
PROBLEM_TYPES = {
    CLASSIFICATION: "single_label_classification",
    REGRESSION: "regression",
    MULTI_LABEL: "multi_label_classification",
}
