"""Name the settings by what other programs call them: transformers' Trainer, DeepSpeed, BERT's own code, Composer.

A key that is unknown here but known there is answered with the setting that does the same, and `maskmill settings`
finds a setting by these names too.
"""

OTHERS = {
    # transformers: TrainingArguments, and run_mlm.py
    "output_dir": "run.dir",
    "overwrite_output_dir": "run.dir",
    "model_name_or_path": "init_from",
    "config_name": "encoder.layers",
    "config_overrides": "encoder.layers",
    "tokenizer_name": "data.vocab",
    "train_file": "data.sources",
    "dataset_name": "data.sources",
    "text_column_name": "data.text_field",
    "validation_split_percentage": "data.held_out",
    "max_seq_length": "data.sequence_length",
    "max_length": "data.sequence_length",
    "block_size": "data.sequence_length",
    "mlm_probability": "data.masked_lm_prob",
    "line_by_line": "data.sentences",
    "preprocessing_num_workers": "data.workers",
    "dataloader_num_workers": "data.workers",
    "per_device_train_batch_size": "train.micro_batch",
    "per_gpu_train_batch_size": "train.micro_batch",
    "auto_find_batch_size": "train.micro_batch",
    "gradient_accumulation_steps": "train.global_batch",
    "learning_rate": "optim.lr",
    "adam_beta1": "optim.betas",
    "adam_beta2": "optim.betas",
    "adam_epsilon": "optim.eps",
    "lr_scheduler_type": "schedule.name",
    "warmup_steps": "schedule.warmup",
    "warmup_ratio": "schedule.warmup",
    "max_steps": "train.steps",
    "num_train_epochs": "train.steps",
    "epochs": "train.steps",
    "max_grad_norm": "train.clip",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "tf32": "train.precision",
    "gradient_checkpointing": "train.activation_checkpointing",
    "torch_compile": "train.compile",
    "full_determinism": "train.deterministic",
    "save_steps": "train.checkpoint_every",
    "save_total_limit": "checkpoint.keep",
    "load_best_model_at_end": "checkpoint.keep_best",
    "resume_from_checkpoint": "run.dir",
    "eval_steps": "train.eval_every",
    "max_eval_samples": "train.eval_examples",
    "logging_steps": "train.log_every",
    "report_to": "monitor.tracker",
    "run_name": "monitor.group",
    "data_seed": "data.seed",
    # DeepSpeed's configuration
    "train_batch_size": "train.global_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "gradient_clipping": "train.clip",
    "zero_stage": "zero.stage",
    "zero_optimization": "zero.stage",
    "offload_optimizer": "zero.offload",
    "sub_group_size": "zero.sub_group_size",
    "steps_per_print": "train.log_every",
    "optimizer": "optim.name",
    # google-research/bert
    "input_file": "data.sources",
    "vocab_file": "data.vocab",
    "do_lower_case": "vocabulary.lowercase",
    "vocab_size": "vocabulary.size",
    "max_predictions_per_seq": "data.max_predictions",
    "do_whole_word_mask": "data.whole_word",
    "random_seed": "data.seed",
    "init_checkpoint": "init_from",
    "num_train_steps": "train.steps",
    "num_warmup_steps": "schedule.warmup",
    "save_checkpoints_steps": "train.checkpoint_every",
    # config.json of transformers
    "num_hidden_layers": "encoder.layers",
    "hidden_size": "encoder.hidden",
    "num_attention_heads": "encoder.heads",
    "num_key_value_heads": "encoder.kv_heads",
    "intermediate_size": "encoder.intermediate",
    "hidden_act": "encoder.activation",
    "hidden_activation": "encoder.activation",
    "hidden_dropout_prob": "encoder.dropout",
    "attention_probs_dropout_prob": "encoder.attention_dropout",
    "max_position_embeddings": "encoder.max_positions",
    "type_vocab_size": "encoder.segments",
    "layer_norm_eps": "encoder.layer_norm_eps",
    "norm_eps": "encoder.layer_norm_eps",
    "embedding_size": "encoder.embedding_size",
    "global_attn_every_n_layers": "encoder.global_every",
    "global_rope_theta": "encoder.rope_theta",
    # Composer: MosaicBERT, ModernBERT
    "global_train_batch_size": "train.global_batch",
    "device_train_microbatch_size": "train.micro_batch",
    "max_duration": "train.steps",
    "save_folder": "run.dir",
    "save_interval": "train.checkpoint_every",
    "save_num_checkpoints_to_keep": "checkpoint.keep",
    "eval_interval": "train.eval_every",
    "t_warmup": "schedule.warmup",
    "batch_size_warmup": "train.batch_ramp",
    "batch_size_warmup_tokens": "train.batch_ramp",
    "batch_size_warmup_min_size": "train.batch_ramp_from",
    "rotary_emb_base": "encoder.rope_theta",
    "local_attn_rotary_emb_base": "encoder.local_rope_theta",
    "sliding_window": "encoder.local_attention",
    # short names that people type
    "batch_size": "train.global_batch",
    "mask_ratio": "data.masked_lm_prob",
    "mask_rate": "data.masked_lm_prob",
    "wandb_project": "monitor.project",
}
"""Name in another program -> the setting here that does the same, or decides it."""


def called_here(name: str) -> str:
    """Return the setting that another program calls `name`, in any case, with or without groups and dashes before it;
    "" where none does."""
    last = name.lower().lstrip("-").replace("-", "_").rpartition(".")[2]
    return OTHERS.get(last, "")


def known_as(setting: str) -> list[str]:
    """List what other programs call a setting."""
    return [name for name, ours in OTHERS.items() if ours == setting]
