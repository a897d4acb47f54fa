"""Names of the kinds of tasks."""

CLASSIFICATION, REGRESSION, MULTI_LABEL = "classification", "regression", "multi-label"
TOKEN_CLASSIFICATION = "token-classification"
# Each kind of task, and how transformers names it: for whole texts, the `problem_type` in a
# config.json.
PROBLEM_TYPES = {
    CLASSIFICATION: "single_label_classification",
    REGRESSION: "regression",
    MULTI_LABEL: "multi_label_classification",
    TOKEN_CLASSIFICATION: "token_classification",
}
TASKS = tuple(PROBLEM_TYPES)
# The task of `bertaccum pretrain`, which no data folder has.
MASKED_LM = "masked-lm"
