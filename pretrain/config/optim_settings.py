"""Define the settings of the optimizer and of the learning rate's schedule."""

from dataclasses import dataclass, field


@dataclass
class OptimSettings:
    name: str = "lamb"
    """lamb, adamw, stable_adamw (AdamW at a lower rate where a tensor's second moment lags behind its gradient) or muon
    (orthogonal updates of the layers' matrices, AdamW for the rest; zero.stage 0 to 2)."""
    variant: str = "nvidia"
    """LAMB as nvidia wrote it (bias correction; no decay and trust ratio 1 for biases and LayerNorm), google (the
    same without bias correction) or the paper (bias correction; decay and trust ratio for every tensor)."""
    trust_clamp: list[float] = field(default_factory=list)
    """LAMB: least and largest trust ratio; empty: any."""
    lr: float = 1e-3
    """Peak learning rate."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay of the first and second moment."""
    eps: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Weight decay; none on biases and LayerNorm."""
    decoupled_decay: bool = False
    """Not for LAMB. false: an update shrinks weights by weight_decay x the learning rate, as torch's AdamW; true: by
    weight_decay x the schedule's share of the peak rate, as MosaicML's DecoupledAdamW and ModernBERT (there 1e-5)."""
    muon_momentum: float = 0.95
    """Muon: decay of the matrices' one moment; `betas` are those of the rest."""
    muon_nesterov: bool = True
    """Muon: orthogonalise the moment as the next gradient, if equal, would leave it."""
    muon_iterations: int = 5
    """Muon: Newton-Schulz iterations."""
    muon_rate: str = "match_rms_adamw"
    """Muon: the rate of a matrix of A x B (outputs x inputs), as torch.optim.Muon's adjust_lr_fn: match_rms_adamw, lr x
    0.2 sqrt(max(A, B)), updates as large as AdamW's; or original, lr x sqrt(max(1, A / B))."""
    muon_lr_ratio: float = 1.0
    """Muon: the matrices' lr, in multiples of optim.lr; muon_rate=original is used with some 30 to 70."""
    muon_precision: str = "fp32"
    """Muon: orthogonalise in fp32, or in bf16 as torch.optim.Muon: faster on a GPU, and rounded to three digits."""


@dataclass
class ScheduleSettings:
    name: str = "linear"
    """linear, polynomial, nvidia (polynomial counted from step 0, as in NVIDIA's LAMB recipe), cosine, constant, wsd
    (warm-up, stable, decay)."""
    warmup: float = 0.1
    """Below 1: share of the steps; from 1 on: steps."""
    power: float = 1.0
    """Exponent of the polynomial and nvidia schedules."""
    decay: float = 0.2
    """wsd: the fall at the end. Below 1: share of the steps; from 1 on: steps; 0: none."""
    decay_shape: str = "one_minus_sqrt"
    """wsd: linear, or one_minus_sqrt, which falls faster at first."""
    decay_to: float = 0.0
    """wsd: the share of the peak rate that the fall ends at."""
    span: str = "phase"
    """What the schedule and the optimizer's count of updates (bias correction) are counted over: each `phase`, or the
    whole `run`, whose phases then differ in optim.lr alone."""
