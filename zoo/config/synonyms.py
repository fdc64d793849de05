"""Other libraries' names of settings: ``epochs``, ``learning_rate``, ``batch_size``."""

from __future__ import annotations

_ELSEWHERE = {
    "optimizer.lr": "learning_rate base_lr lr0 init_lr initial_lr eta",
    "optimizer.weight_decay": "wd decay l2 l2_reg weightdecay",
    "optimizer.momentum": "mom beta",
    "optimizer.betas": "beta1 beta2 adam_betas",
    "optimizer.eps": "epsilon",
    "optimizer.head_multiplier": "head_lr lr_head",
    "optimizer.loss_multiplier": "loss_lr lr_loss proxy_lr",
    "schedule": "scheduler lr_scheduler lr_schedule",
    "schedule.warmup": "warmup_steps warmup_iterations warmup_iters warmup_epochs",
    "train.iterations": "epochs num_epochs max_epochs n_epochs epoch steps num_steps max_steps "
    "iters max_iters num_iterations max_iterations",
    "train.workers": "num_workers n_workers n_jobs",
    "train.precision": "amp fp16 bf16 mixed_precision use_amp dtype",
    "train.clip_norm": "grad_clip clip clip_grad clip_grad_norm gradient_clipping max_grad_norm "
    "max_norm gradient_clip_val",
    "train.log_every": "log_interval log_freq print_freq print_every log_every_n_steps",
    "train.checkpoint_every": "save_every save_interval save_freq save_steps checkpoint_interval",
    "evaluate.every": "eval_every eval_interval val_interval eval_freq eval_steps val_every",
    "evaluate.validation": "val val_split validation_split val_share holdout",
    "evaluate.ks": "k topk top_k recall_at recall_ks",
    "evaluate.measures": "metric metrics",
    "model.backbone": "arch architecture net network encoder trunk",
    "model.embedding_size": "dim emb_dim embed_dim embedding_dim embedding_dims out_dim output_dim "
    "feature_dim features d",
    "model.pooling": "pool",
    "images.resize": "image_size img_size input_size size resolution resize_to",
    "images.crop": "crop_size",
    "images.mirror": "flip hflip horizontal_flip random_flip",
    "dataset": "data",
    "dataset.root": "data_root data_dir data_path root_dir path folder",
    "loss": "criterion objective loss_fn",
    "seed": "random_seed random_state manual_seed rng",
    "device": "gpu gpus cuda accelerator",
    "output": "output_dir out out_dir save_dir log_dir result_dir",
}
_MEANT = {word: setting for setting, words in _ELSEWHERE.items() for word in words.split()}
_OF_A_BATCH = ("batch_size", "batchsize", "bs", "batch", "train_batch_size")


def meant_by(key: str, sampler: set[str]) -> list[str]:
    """Return the settings that another library's key means, given the sampler's arguments."""
    key = key.lower().replace("-", "_")
    if key in _OF_A_BATCH:
        sizes = [name for name in ("batch_size", "classes", "per_class") if name in sampler]
        return [f"sampler.{name}" for name in sizes]
    return [_MEANT[key]] if key in _MEANT else []
