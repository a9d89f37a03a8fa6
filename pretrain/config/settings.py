"""Define RunConfig: every setting of a run, typed and documented here, with the values that it may have.

Recipes and the command line fill it in (launch/recipe.py); pretrain/preflight/validate.py lists what is wrong. A
setting marked `by_phase` may differ between the phases of a run; so may those of a group that is marked, but for
settings that are marked otherwise. The groups `data` and
`vocabulary` are defined in data_pipeline/settings.py, `encoder` and `objective.electra` in
pretrain/config/encoder.py.
"""

from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from data_pipeline.fields import setting
from data_pipeline.settings import DataSettings, VocabularySettings
from pretrain.config.encoder import ElectraSettings, EncoderSettings


@dataclass
class OptimSettings:
    name: str = setting("lamb", one_of="pretrain.optim.registry:OPTIMIZERS")
    """lamb, adamw, stable_adamw (AdamW at a lower rate where a tensor's second moment lags behind its gradient) or muon
    (orthogonal updates of the layers' matrices, AdamW for the rest; zero.stage 0 to 2)."""
    variant: str = setting("nvidia", one_of=("nvidia", "google", "paper"))
    """LAMB as nvidia wrote it (bias correction; no decay and trust ratio 1 for biases and LayerNorm), google (the
    same without bias correction) or the paper (bias correction; decay and trust ratio for every tensor)."""
    trust_clamp: list[float] = setting([])
    """LAMB: least and largest trust ratio; empty: any."""
    lr: float = setting(1e-3, at_least=0, by_phase=True)
    """Peak learning rate."""
    betas: list[float] = setting([0.9, 0.999], entries=2, at_least=0, below=1)
    """Decay of the first and second moment."""
    eps: float = setting(1e-6, at_least=0, at_most=1)
    """Added to the root of the second moment."""
    weight_decay: float = setting(0.01, at_least=0)
    """Weight decay; none on biases and LayerNorm."""
    decoupled_decay: bool = False
    """Not for LAMB. false: an update shrinks weights by weight_decay x the learning rate, as torch's AdamW; true: by
    weight_decay x the schedule's share of the peak rate, as MosaicML's DecoupledAdamW and ModernBERT (there 1e-5)."""
    muon_momentum: float = setting(0.95, at_least=0, at_most=0.9999)
    """Muon: decay of the matrices' one moment; `betas` are those of the rest."""
    muon_nesterov: bool = True
    """Muon: orthogonalise the moment as the next gradient, if equal, would leave it."""
    muon_iterations: int = setting(5, at_least=1, at_most=99)
    """Muon: Newton-Schulz iterations."""
    muon_adjust_lr_fn: str = setting("match_rms_adamw", one_of=("match_rms_adamw", "original"))
    """Muon: the rate of a matrix of A x B (outputs x inputs), as torch.optim.Muon's adjust_lr_fn: match_rms_adamw, lr x
    0.2 sqrt(max(A, B)), updates as large as AdamW's; or original, lr x sqrt(max(1, A / B))."""
    muon_lr_ratio: float = setting(1.0, at_least=0)
    """Muon: the matrices' lr, in multiples of optim.lr; muon_adjust_lr_fn=original is used with some 30 to 70."""
    muon_precision: str = setting("fp32", one_of=("fp32", "bf16"))
    """Muon: orthogonalise in fp32, or in bf16 as torch.optim.Muon: faster on a GPU, and rounded to three digits."""


@dataclass
class ScheduleSettings:
    name: str = setting("linear", one_of="pretrain.optim.schedule:SCHEDULES")
    """linear, polynomial, nvidia (polynomial counted from step 0, as in NVIDIA's LAMB recipe), cosine, constant, wsd
    (warm-up, stable, decay)."""
    warmup: float = setting(0.1, at_least=0)
    """Below 1: share of the steps; from 1 on: steps."""
    power: float = setting(1.0, at_least=0)
    """Exponent of the polynomial and nvidia schedules."""
    decay: float = setting(0.2, at_least=0)
    """wsd: the fall at the end. Below 1: share of the steps; from 1 on: steps; 0: none."""
    decay_shape: str = setting("one_minus_sqrt", one_of="pretrain.optim.schedule:DECAYS")
    """wsd: linear, or one_minus_sqrt, which falls faster at first."""
    decay_to: float = setting(0.0, at_least=0, at_most=1)
    """wsd: the share of the peak rate that the fall ends at."""
    span: str = setting("phase", one_of=("phase", "run"), by_phase=False)
    """What the schedule and the optimizer's count of updates (bias correction) are counted over: each `phase`, or the
    whole `run`, whose phases then differ in optim.lr alone."""


CLS_SEGMENT = 2
"""Segment of [CLS] where it is behind the text (XLNet): another one than those of the text."""


@dataclass
class RunSettings:
    dir: str = ""
    """Folder of the run: checkpoints, metrics.jsonl, summary.json, report.html."""
    ranks: int = setting(1, at_least=1, at_most=65_536)
    """Processes to start on this machine; ignored where a launcher has already started the ranks."""
    threads: int = setting(0, at_least=0, at_most=4096)
    """CPU threads a rank; 0: the machine's cores shared out among its ranks."""
    seed: int = setting(1, at_least=0, at_most=2**63)
    """Seed of the weights, the order of the data and dropout."""
    stop_after: int = setting(0, at_least=0)
    """Save a checkpoint and stop after this step, the schedule unchanged; 0: train to the end."""
    stopped_exit_code: int = setting(3, at_least=3, at_most=255)
    """Exit code of a training that a signal has ended: it has saved, and the same command resumes it. 143 (128 +
    SIGTERM) for schedulers that start again only what ended with a code above 128. Leave it at 3 under
    slurm/train.sbatch, which requeues by it."""
    restarts: int = setting(3, at_least=0, at_most=1_000_000)
    """How often, in all, ranks that this command started are started again after a crash, a kill or a hang, from the
    newest checkpoint; a mistake told in one line (exit code 2) would come again and is not retried."""
    restart_delay: float = setting(5.0, at_least=0, at_most=86_400)
    """Seconds before that."""
    live: bool = True
    """While training in a terminal, show a panel that is repainted in place; false: lines, as in a batch log. Where the
    output goes to a file or a pipe, TERM is dumb or CI is set, there are lines in any case."""
    step_timeout: float = setting(1800.0, at_least=0, at_most=1_000_000)
    """Seconds that a step, an evaluation or a checkpoint may take; beyond it every rank writes its stack to
    logs/rank-N.log in run.dir and ends. 0: no limit."""
    stage_limit: float = setting(1800.0, at_least=0, at_most=1_000_000)
    """The same for each stage of a start and of the end, as connecting, building the engine, loading a checkpoint,
    compiling, the report and W&B: minutes, however short a step is. 0: no limit."""
    folder_wait: float = setting(90.0, at_least=0, at_most=86_400)
    """Seconds that ranks wait for files of run.dir that another machine wrote and a network folder does not show yet,
    before these count as missing. Longer than a client may keep what it knows of a folder: NFS does for a minute."""


NO_FP8 = {
    "fp8": (
        "was removed: it was slower than bf16",
        "train.precision=bf16; a run begun in fp8 goes on as a new one with init_from",
    )
}


@dataclass
class TrainSettings:
    shards: str = setting("", by_phase=True)
    """Folder with the shards and index.json; empty: data.out."""
    steps: int = setting(1000, at_least=0, by_phase=True)
    """Accepted optimizer updates."""
    minutes: float = setting(0.0, at_least=0, at_most=10_000_000, by_phase=True)
    """Train for so many minutes by the first rank's clock instead, which counts steps alone: no start, evaluation or
    checkpoint. The schedule follows the share that is used. 0: train.steps."""
    replay: str = ""
    """Folder (or metrics.jsonl) of a finished run with train.minutes: take the shares that it logged in place of the
    clock, so that the run is repeated bit-equal."""
    global_batch: int = setting(256, at_least=1, by_phase=True)
    """Examples of one update, over all ranks; exact."""
    batch_ramp: int = setting(0, at_least=0, by_phase=True)
    """Global batches over which the batch grows evenly from train.batch_ramp_from to train.global_batch; 0: all are
    alike. The learning rate does not follow it."""
    batch_ramp_from: int = setting(0, at_least=0, by_phase=True)
    """Examples of the first global batch of that ramp. Every batch is a multiple of the number of data.streams, of
    which there are by default as many as divide both ends."""
    micro_batch: int = setting(32, at_least=0, by_phase=True)
    """Token budget of one forward pass, in full-length examples: micro_batch x sequence_length tokens. 0: the largest
    that fits the memory of the run's GPUs and divides what a rank has of the global batch; on CPUs, of at most 4,096
    tokens. A run keeps what it chose when it resumes."""
    precision: str = setting("auto", one_of=("auto", "fp32", "bf16", "fp16"), refused=NO_FP8)
    """fp32, bf16, fp16; auto: bf16 on CUDA, fp32 on CPU. Masters, moments and reduction are fp32 in each."""
    clip: float = setting(1.0, at_least=0)
    """Largest global gradient norm, applied before the moments; 0: no clipping."""
    eval_every: int = setting(0, at_least=0, by_phase=True)
    """Steps between evaluations on the held-out examples; 0: only at the end."""
    eval_examples: int = setting(2048, at_least=1, by_phase=True)
    """Held-out examples of one evaluation: always the first so many."""
    probe: str = ""
    """Task that the model is scored on while it trains, as by `maskmill evaluate`: blimp (a fixed tenth of it), or one
    of texts or words with a label (own, tagging, mrpc, uner, ...) that a linear model reads from the frozen encoder.
    Empty: none."""
    probe_data: str = ""
    """The task's folder, as --data of `maskmill evaluate`."""
    probe_every: int = setting(0, at_least=0, by_phase=True)
    """Steps between two scores; 0: only of the starting weights and at the end."""
    checkpoint_every: int = setting(0, at_least=0, by_phase=True)
    """Steps between checkpoints; 0: only at the end."""
    log_every: int = setting(10, at_least=1, by_phase=True)
    """Steps between lines of metrics.jsonl."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations."""
    kernels: str = setting("auto", one_of=("auto", "triton", "torch"))
    """Passes over memory of every optimizer but adamw: auto (Triton's kernels on CUDA where triton is installed, else
    torch), triton (or an error) or torch."""
    compile: str = setting("auto", one_of=("auto", "off", "on"))
    """Fuse the model's operations with torch.compile, once, for one shape of micro-batch: on, off; auto: on on CUDA,
    and on a CPU where the run is so long that a minute or two of compiling pays."""
    on_nan: str = setting("skip", one_of=("skip", "rollback", "stop"))
    """What follows a batch whose gradient is not finite: `skip` it, `rollback` to the newest checkpoint and skip the
    batches since, or `stop`. Ten in a row end the run. fp16 always skips: there it is how the loss scale is found."""
    on_spike: str = setting("off", one_of=("off", "skip", "rollback", "stop"))
    """What follows a batch whose loss is a spike: `skip`, `rollback`, `stop`, or `off`: losses are not watched."""
    spike_sigma: float = setting(6.0, at_least=0.1)
    """A loss is a spike if it lies more than so many standard deviations above the mean of those before it."""
    spike_window: int = setting(128, at_least=4, at_most=1_000_000)
    """So many losses before it; watched from half as many on."""
    deterministic: bool = True
    """Have torch use deterministic kernels alone, so that a repeated run is bit-equal (CUDA: somewhat slower)."""


@dataclass
class CheckpointSettings:
    keep: int = setting(2, at_least=1)
    """Newest checkpoints that stay."""
    keep_every: int = setting(0, at_least=0)
    """Every so many-th stays as well: those at multiples of keep_every x train.checkpoint_every steps; 0: none."""
    keep_best: bool = True
    """The one with the lowest held-out loss stays as well, of those at whose step train.eval_every had one measured."""
    mirror: str = ""
    """URI in an object store (s3://bucket/run) to which each checkpoint is copied in the background; a run whose folder
    has none left resumes from there."""


NO_NVME = {
    "nvme": (
        "is not supported: the norms of LAMB and every checkpoint need all masters and moments in memory",
        "zero.offload=cpu, or more ranks at zero.stage=3",
    )
}


@dataclass
class ZeroSettings:
    stage: int = setting(1, one_of=(0, 1, 2, 3))
    """DeepSpeed ZeRO: 0 nothing sharded, 1 optimizer state, 2 and gradients, 3 and parameters."""
    sub_group_size: int = setting(100_000_000, at_least=1)
    """Stage 3: elements that the optimizer steps at a time."""
    offload: str = setting("none", one_of=("none", "cpu"), refused=NO_NVME)
    """none, or cpu (stages 1 to 3): masters, moments and the optimizer's step in the host's memory, slower."""


@dataclass
class ElectraTwoStageSettings:
    generator: str = ""
    """Hugging Face folder of the finished generator: a masked language model of this run's vocabulary and widths, such
    as the export of a run of objective.name=mlm. The discriminator starts from its weights; it is never changed, and a
    part of the run's identity."""


@dataclass
class CausalSettings:
    direction: str = setting("left_to_right", one_of=("left_to_right", "right_to_left"))
    """left_to_right, or right_to_left: each example's tokens are reversed, and a token predicts the one before it."""


@dataclass
class DistillationSettings:
    teacher: str = ""
    """Hugging Face folder of the model to learn from, with its head for masked words: of this run's vocabulary, widths
    and kind of encoder, as a BERT, RoBERTa or ModernBERT. Its weights are read once, never changed, and a part of the
    run's identity."""
    temperature: float = setting(2.0, at_least=0.01, at_most=1000)
    """What the logits of teacher and student are divided by before they are compared."""
    soft_weight: float = setting(5.0, at_least=0)
    """Weight of the divergence from the teacher's predictions."""
    mlm_weight: float = setting(2.0, at_least=0)
    """Weight of the loss of the masked tokens."""
    cos_weight: float = setting(1.0, at_least=0)
    """Weight of one minus the cosine between the last hidden states of student and teacher."""
    masked_only: bool = False
    """Compare predictions at masked tokens only, a sixth of the work; false: at every token."""


@dataclass
class XlnetSettings:
    memory_length: int = setting(0, at_least=0, at_most=65_535)
    """Hidden states that every layer keeps of the text before an example, for each stream of the global batch; needs
    data.order=sequential. 0: none, and any order."""


@dataclass
class ObjectiveSettings:
    name: str = setting("bert", one_of="pretrain.objectives.registry:OBJECTIVES")
    """bert (masked tokens and labels of pairs), albert (the same, with layers that may share parameters), ernie
    (the same as bert, with names and phrases as masks), mlm (masked tokens of single streams), causal (every next
    token, either way; data.masking=none), spanbert (mlm of spans, and each token from its span's boundaries),
    electra (replaced tokens, which a generator puts in place of masked ones), electra_two_stage (the same with a
    generator that is finished, from whose weights the discriminator starts), distilbert (half the layers of a teacher,
    and its predictions), distilroberta (the same of a RoBERTa), roberta or xlmr (mlm without segments, of byte-level
    BPE or unigram tokens), xlnet (tokens in a random order, each from those before it)."""
    causal: CausalSettings = field(default_factory=CausalSettings)
    electra: ElectraSettings = field(default_factory=ElectraSettings)
    electra_two_stage: ElectraTwoStageSettings = field(default_factory=ElectraTwoStageSettings)
    distilbert: DistillationSettings = field(default_factory=DistillationSettings)
    distilroberta: DistillationSettings = field(default_factory=DistillationSettings)
    xlnet: XlnetSettings = field(default_factory=XlnetSettings)

    # A member of the registry with settings of its own has a field of its name here: a dataclass, so that they are
    # objective.NAME.KEY in recipes, on the command line, in `maskmill settings` and in the run's identity.

    def of_member(self, name: str = "") -> dict[str, Any]:
        """Return the settings of the chosen objective's own group, or of the one of `name`; empty where it has none."""
        group = getattr(self, name or self.name, None)
        return asdict(group) if is_dataclass(group) and not isinstance(group, type) else {}


@dataclass
class MonitorSettings:
    tracker: str = setting("jsonl", one_of=("wandb", "tensorboard", "jsonl", "none"))
    """wandb (metrics.jsonl as well; offline without a key), tensorboard (metrics.jsonl as well; event files in the run
    folder), jsonl (metrics.jsonl), or none."""
    project: str = "maskmill"
    """W&B project."""
    id: str = ""
    """W&B run id; empty: drawn once and kept in the run folder."""
    group: str = ""
    """W&B group of the stages of one training (prepare, train, export); empty: the name of run.dir."""
    artifacts: str = setting("none", one_of=("none", "index", "all"))
    """What W&B gets as artifacts, with what was made from what: none; index (index.json, the vocabulary and the names
    and hashes of a checkpoint's files, no text and no weights); all (the exported model as well)."""
    alert_every: float = setting(3600.0, at_least=0)
    """Seconds between two W&B alerts of one cause (NaN, spike, stall, slow rank, disk, restart, ...); 0: no alerts."""
    trust_ratios_every: int = setting(0, at_least=0)
    """LAMB: steps between the lines of metrics.jsonl that hold the trust ratio of each tensor; 0: none."""
    peak_tflops: float = setting(0.0, at_least=0)
    """Peak of one device for MFU; 0: known for common GPUs, measured on a CPU."""


@dataclass
class ExportSettings:
    license: str = ""
    """License that the model card states, by the hub's identifier where it has one (apache-2.0, mit, cc-by-sa-4.0);
    empty: not stated. `maskmill export --license` states another."""


@dataclass
class RunConfig:
    """One complete run, from sources to model."""

    data: DataSettings = field(default_factory=DataSettings, metadata={"by_phase": True})
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    run: RunSettings = field(default_factory=RunSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    zero: ZeroSettings = field(default_factory=ZeroSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings, metadata={"by_phase": True})
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    init_from: str = ""
    """A run, checkpoint or Hugging Face folder whose weights to start from; its schedule restarts. A Hugging Face
    folder also states the encoder, and, unless they are set, the objective and data.vocab."""
    init_moments: bool = False
    """With init_from a run or checkpoint: keep both moments as well, as the second of two phases does."""
    init_positions: str = setting("repeat", one_of=("repeat", "interpolate", "fresh"))
    """With init_from a Hugging Face folder of fewer positions than encoder.max_positions, and in a phase of longer
    examples than those before, the vectors of new positions: `repeat` the old ones in their order, `interpolate`
    between neighbours over the whole length, or `fresh` ones."""
    init_new_words: str = setting("mean", one_of=("mean", "first", "fresh"))
    """With init_from a Hugging Face folder whose vocabulary the run's extends (`maskmill vocab --extend`), the vectors
    and the output's biases of new entries: the `mean` of their old pieces', the `first` of these, or `fresh` ones."""
    phases: list[dict[str, Any]] = field(default_factory=list)
    """Parts of the run, one after the other: each a `name` and the settings that differ in it (data, schedule,
    optim.lr, the thetas of RoPE, and of train the shards, length, batches and intervals). Weights and both moments
    carry over from one to the next; schedule and bias correction restart, unless schedule.span=run. On the command
    line: phases.NAME.train.steps=100. Empty: the run has one part."""
