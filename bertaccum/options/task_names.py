"""Names of the kinds of tasks."""

CLASSIFICATION, REGRESSION, MULTI_LABEL = "classification", "regression", "multi-label"
TOKEN_CLASSIFICATION = "token-classification"
# Each kind of task of whole texts, and how transformers names it, the `problem_type` in a
# config.json.
PROBLEM_TYPES = {
    CLASSIFICATION: "single_label_classification",
    REGRESSION: "regression",
    MULTI_LABEL: "multi_label_classification",
}
TASKS = (*PROBLEM_TYPES, TOKEN_CLASSIFICATION)
