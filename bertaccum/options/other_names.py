"""Names of options and commands in other programs, and what bertaccum has instead.

Sources: the flags of google-research/bert's run_classifier.py; the fields of TrainingArguments in
transformers 5.23.0, and the options of its example scripts; other common names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

# Our options, and their other names. A command has at most one of several options with one name.
_OPTIONS = {
    "accumulator_dtype": "grad_dtype gradient_dtype",
    "batch": "batch_size eval_batch_size predict_batch_size test_batch_size inference_batch_size"
    " per_device_eval_batch_size per_gpu_eval_batch_size bs",
    "bert_config": "bert_config_file config_name model_config",
    "best_by": "metric_for_best_model metric metrics monitor best_metric metric_name",
    "class_weight": "class_weights label_weights pos_weight loss_weights",
    "clip_norm": "max_grad_norm clip_grad_norm grad_clip gradient_clip gradient_clip_val"
    " gradient_clipping clipnorm max_norm clip",
    "collective_timeout": "ddp_timeout",
    "compile": "torch_compile xla jit jit_compile use_xla",
    "config": "config_file yaml recipe",
    "cut": "train_sampling_strategy length_column_name group_by_length",
    "data": "data_dir data_folder data_path dataset_dir dataset_path input_dir train_dir"
    " train_data",
    "dataset": "dataset_name dataset_config_name task_name glue_task",
    "delimiter": "sep separator csv_delimiter text_column_delimiter",
    "deterministic": "full_determinism enable_determinism enable_full_determinism",
    "dev_fraction": "validation_split val_split dev_split valid_split val_size dev_size"
    " val_fraction validation_fraction eval_split validation_split_percentage",
    "dropout": "dropout_rate dropout_prob hidden_dropout hidden_dropout_prob classifier_dropout"
    " attention_probs_dropout_prob",
    "epochs": "num_train_epochs num_epoch num_epochs n_epochs nb_epochs train_epochs max_epochs"
    " epoch",
    "eval_every": "eval_steps eval_strategy evaluation_strategy eval_interval"
    " evaluate_during_training validation_steps val_check_interval",
    "file": "input input_file input_path test_file predict_file data_file test_path data text",
    "folder": "data_dir data_folder dir glue_dir",
    "format": "export_format output_format onnx",
    "freeze": "freeze_embeddings freeze_bert freeze_encoder",
    "init_checkpoint": "model_name_or_path model_name pretrained_model_name_or_path"
    " pretrained_model bert_model bert_path model_path checkpoint ckpt init_ckpt pretrained"
    " weights encoder"
    " base_model pretrained_path",
    "keep": "save_total_limit keep_checkpoint_max max_to_keep num_checkpoints",
    "label_column": "label_col label_column_name label_name label_key labels_column target_column"
    " target_col label_field label_names",
    "label_smoothing": "label_smoothing_factor label_smooth smoothing",
    "learning_rate": "lr peak_lr max_lr init_lr base_lr initial_learning_rate init_learning_rate"
    " peak_learning_rate rate eta",
    "log_every": "logging_steps logging_strategy logging_first_step log_interval log_steps"
    " log_every_n_steps logging_interval print_every",
    "lower_case": "do_lower_case lowercase lower uncased do_lower do_lowercase",
    "max_nonfinite": "logging_nan_inf_filter",
    "max_seq_length": "max_length max_len max_seq_len max_sequence_length seq_length seq_len"
    " sequence_length block_size maxlen model_max_length max_tokens msl",
    "max_updates": "max_steps num_train_steps train_steps total_steps num_steps steps"
    " max_train_steps iterations max_iter",
    "micro_batch": "per_device_train_batch_size per_gpu_train_batch_size per_device_batch_size"
    " micro_batch_size microbatch_size microbatch device_batch_size auto_find_batch_size"
    " train_micro_batch_size_per_gpu",
    "model": "architecture arch model_type model_size",
    "offload": "deepspeed fsdp fsdp_config offload_optimizer zero cpu_offload",
    "optimizer": "optim optimizer_type optimizer_name optimiser opt",
    "out": "output_dir out_dir output outdir save_dir save_path model_dir log_dir logging_dir"
    " export_dir results_dir output_path output_folder o",
    "patience": "early_stopping_patience early_stopping early_stop patience_epochs",
    "precision": "mixed_precision amp dtype use_amp torch_dtype half",
    "quiet": "disable_tqdm log_level log_level_replica log_on_each_node silent",
    "recompute": "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing"
    " activation_checkpointing_kwargs use_gradient_checkpointing checkpoint_activations",
    "replicas": "num_gpus gpus n_gpu n_gpus nproc_per_node ngpus",
    "results": "output output_file output_path out out_file predictions_file results_file",
    "resume": "resume_from_checkpoint resume_from restore continue_from load_checkpoint",
    "run": "model_name_or_path model_path checkpoint ckpt model_dir model run_dir output_dir"
    " saved_model init_checkpoint run_name",
    "save_every": "save_steps save_strategy save_checkpoints_steps save_interval checkpoint_steps"
    " checkpoint_every",
    "seed": "data_seed shuffle_seed random_seed random_state manual_seed rng_seed",
    "strategy": "distribution_strategy accelerator accelerator_config parallelism_config"
    " ddp_backend ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers"
    " ddp_static_graph local_rank distributed distributed_backend",
    "target_batch": "batch_size train_batch_size global_batch_size total_batch_size bs batch"
    " effective_batch_size total_train_batch_size virtual_batch_size n_batch target_batch_size",
    "test_fraction": "test_split test_size test_split_percentage",
    "text_column": "text_col text_column_name text_field text_key sentence1_key sentence_column"
    " input_column text_column_names",
    "text_pair_column": "sentence2_key text_b_column text2_column pair_column",
    "thresholds": "threshold decision_threshold",
    "train_file": "input input_file input_path data_file csv csv_file file data",
    "train_layers": "trainable_layers unfreeze_layers",
    "truncate": "truncation truncation_side truncation_strategy",
    "vocab": "vocab_file tokenizer_name tokenizer vocab_path tokenizer_path",
    "warmup_fraction": "warmup_ratio warmup_proportion warmup warm_up warmup_rate",
    "weight_decay": "decay weight_decay_rate wd l2 adam_weight_decay",
    "stride": "doc_stride",
    "windows": "return_overflowing_tokens sliding_window max_windows",
    "workers": "num_processes nnodes num_nodes world_size n_workers",
}

# Advice about options that bertaccum does not have, and their names.
_INSTEAD = {
    "`target_batch` is the number of examples of an update, on all devices; the number of"
    " micro-batches follows from it": "gradient_accumulation_steps accumulation_steps accum_steps"
    " grad_accum_steps accumulate_grad_batches gradient_accumulation accumulate grad_accum"
    " iter_size update_freq",
    "`train_layers` is the number of layers that are trained; the others are"
    " frozen": "freeze_layers num_frozen_layers frozen_layers",
    "`warmup_fraction` is the fraction of all updates in which the rate grows": "warmup_steps"
    " num_warmup_steps warmup_epochs",
    "`prepare` splits the training file; to choose dev.tsv yourself, put it beside train.tsv in the"
    " folder `data`": "validation_file dev_file val_file eval_file valid_file",
    "bertaccum calls this `task`, which is classification, regression or"
    " multi-label": "do_regression task_type multi_label multilabel regression is_regression",
    "bertaccum calls this `precision` mixed_float16": "fp16 float16 fp16_opt_level",
    "bertaccum calls this `precision` mixed_bfloat16": "bf16 bfloat16",
    "each is a command: `bertaccum train`, `bertaccum eval` and `bertaccum predict`": "do_train"
    " do_eval do_predict do_test do_export mode evaluate_only eval_only test_only do_evaluate",
    "not available: the learning rate always decays linearly after the warm-up": "lr_scheduler_type"
    " lr_scheduler_kwargs lr_scheduler scheduler lr_schedule schedule lr_decay scheduler_type"
    " lr_decay_style decay_steps",
    "not available: AdamW's betas are 0.9 and 0.999; `optimizer` selects its epsilon": "adam_beta1"
    " adam_beta2 adam_epsilon beta1 beta2 betas epsilon eps optim_args optim_target_modules"
    " momentum",
    "for several machines, use `strategy` multi-worker": "master worker_hosts job_name",
    "TPUs are not supported": "use_tpu tpu_name tpu_zone gcp_project num_tpu_cores tpu tpu_cores"
    " iterations_per_loop tpu_num_cores",
    "all GPUs are used by default; CUDA_VISIBLE_DEVICES selects them": "use_cpu"
    " no_cuda device gpu cuda gpu_id cpu use_gpu use_cuda gpu_ids devices device_id",
    "not needed: the labels are read from the data": "num_labels num_classes n_classes label_list"
    " labels classes nb_classes label_map id2label problem_type ignore_mismatched_sizes",
    "not needed: texts are tokenized once, into a memory-mapped file": "dataloader_num_workers"
    " dataloader_drop_last dataloader_pin_memory dataloader_persistent_workers"
    " dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order num_proc"
    " preprocessing_num_workers num_workers drop_last overwrite_cache cache_dataset"
    " shuffle_buffer_size pad_to_max_length use_fast_tokenizer use_fast"
    " remove_unused_columns remove_columns",
    "the environment variable BERTACCUM_CACHE names the cache folder": "cache_dir hf_home",
    "not needed: TensorBoard and `bertaccum compare` read the run folders": "report_to project"
    " run_name trackio_space_id trackio_bucket_id trackio_static_space_id tensorboard wandb"
    " wandb_project experiment_name use_wandb tensorboard_dir",
    "bertaccum overwrites no run; choose another folder with `out`": "overwrite_output_dir"
    " overwrite force",
    "not needed: `bertaccum eval`, `predict` and `export` use the best"
    " checkpoint": "greater_is_better load_best_model_at_end save_only_model save_best_only"
    " save_best",
    "not available: all rows are read": "max_train_samples"
    " max_eval_samples max_predict_samples max_test_samples num_train_samples max_samples limit",
    "not available: bertaccum neither downloads from the Hugging Face Hub nor uploads to it;"
    " `bertaccum export` writes a folder to upload": "push_to_hub hub_token hub_private_repo"
    " hub_model_id hub_strategy hub_always_push"
    " hub_revision push_to_hub_model_id"
    " model_revision revision trust_remote_code token use_auth_token",
    "this is an option of Trainer that bertaccum does not have; see"
    " docs/migration/huggingface.md": "average_tokens_across_devices bf16_full_eval fp16_full_eval"
    " tf32 torch_compile_backend torch_compile_mode torch_empty_cache_steps use_liger_kernel"
    " liger_kernel_config use_cache neftune_noise_alpha include_num_input_tokens_seen eval_delay"
    " eval_on_start prediction_loss_only include_for_metrics batch_eval_metrics"
    " eval_do_concat_batches eval_use_gather_object eval_accumulation_steps save_on_each_node"
    " enable_jit_checkpoint ignore_data_skip restore_callback_states_from_checkpoint debug"
    " skip_memory_metrics save_safetensors",
}

_COMMANDS = {
    "train": "finetune fine_tune fit training run_classifier run",
    "eval": "evaluate evaluation test score validate",
    "predict": "infer inference classify prediction",
    "prepare": "preprocess prep convert_data data tokenize",
    "sweep": "tune search hyperparameter_search grid_search hpo",
    "runs": "list ls history",
    "export": "convert save",
    "show": "info inspect status",
    "models": "list_models checkpoints",
    "doctor": "env check",
    "report": "html",
    "serve": "server api",
    "plan": "find_batch estimate memory",
}


def explain_option(name: str, command: str, options: Mapping[str, Collection[str]]) -> str:
    """Return what bertaccum has instead of an unknown option; empty if the option is not known.

    Args:
      name: The option, such as `--lr` or `lr`.

    Returns:
      A phrase with our options in backticks, such as "bertaccum calls this `learning_rate`".
    """
    asked = name.strip("-").replace("-", "_").lower()
    names = [asked, *(ours for ours, others in _OPTIONS.items() if asked in others.split())]
    for ours in names:
        if ours in options[command]:
            return f"bertaccum calls this `{ours}`"
    for instead, others in _INSTEAD.items():
        if asked in others.split():
            return instead
    for ours in names:
        if having := [other for other, those in options.items() if ours in those]:
            called = "this is" if ours == asked else f"bertaccum calls this `{ours}`,"
            return f"{called} an option of `bertaccum {'`, `'.join(having)}`"
    if asked.startswith("no"):  # run_classifier.py takes `--nouse_tpu` for `--use_tpu=false`.
        return explain_option(asked[2:].lstrip("_"), command, options)
    return ""


def explain_command(name: str) -> str:
    """Return what bertaccum calls an unknown command; empty if the command is not known."""
    asked = name.replace("-", "_").lower()
    found = next((ours for ours, others in _COMMANDS.items() if asked in others.split()), None)
    return f"bertaccum calls this {found}" if found else ""
