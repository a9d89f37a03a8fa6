"""Define RunConfig: every setting of a run, typed and documented here; recipes and the command line fill it in.

launch/recipe.py reads them, pretrain/preflight/validate.py lists what is wrong with them. The groups `data` and
`vocabulary` are defined in data_pipeline/settings.py, `encoder` and `objective.electra` in
pretrain/config/encoder.py.
"""

from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from data_pipeline.settings import DataSettings, VocabularySettings
from pretrain.config.encoder import ElectraSettings, EncoderSettings


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


CLS_SEGMENT = 2
"""Segment of [CLS] where it is behind the text (XLNet): another one than those of the text."""


@dataclass
class RunSettings:
    dir: str = ""
    """Folder of the run: checkpoints, metrics.jsonl, summary.json, report.html."""
    ranks: int = 1
    """Processes to start on this machine; ignored where a launcher has already started the ranks."""
    threads: int = 0
    """CPU threads a rank; 0: the machine's cores shared out among its ranks."""
    seed: int = 1
    """Seed of the weights, the order of the data and dropout."""
    stop_after: int = 0
    """Save a checkpoint and stop after this step, the schedule unchanged; 0: train to the end."""
    stopped_exit_code: int = 3
    """Exit code of a training that a signal has ended: it has saved, and the same command resumes it. 143 (128 +
    SIGTERM) for schedulers that start again only what ended with a code above 128. Leave it at 3 under
    slurm/train.sbatch, which requeues by it."""
    restarts: int = 3
    """How often, in all, ranks that this command started are started again after a crash, a kill or a hang, from the
    newest checkpoint; a mistake told in one line (exit code 2) would come again and is not retried."""
    restart_delay: float = 5.0
    """Seconds before that."""
    live: bool = True
    """While training in a terminal, show a panel that is repainted in place; false: lines, as in a batch log. Where the
    output goes to a file or a pipe, TERM is dumb or CI is set, there are lines in any case."""
    step_limit: float = 1800.0
    """Seconds that a step, an evaluation or a checkpoint may take; beyond it every rank writes its stack to
    logs/rank-N.log in run.dir and ends. 0: no limit."""
    stage_limit: float = 1800.0
    """The same for each stage of a start and of the end, as connecting, building the engine, loading a checkpoint,
    compiling, the report and W&B: minutes, however short a step is. 0: no limit."""
    folder_wait: float = 90.0
    """Seconds that ranks wait for files of run.dir that another machine wrote and a network folder does not show yet,
    before these count as missing. Longer than a client may keep what it knows of a folder: NFS does for a minute."""


@dataclass
class TrainSettings:
    shards: str = ""
    """Folder with the shards and index.json; empty: data.out."""
    steps: int = 1000
    """Accepted optimizer updates."""
    minutes: float = 0.0
    """Train for so many minutes by the first rank's clock instead, which counts steps alone: no start, evaluation or
    checkpoint. The schedule follows the share that is used. 0: train.steps."""
    replay: str = ""
    """Folder (or metrics.jsonl) of a finished run with train.minutes: take the shares that it logged in place of the
    clock, so that the run is repeated bit-equal."""
    global_batch: int = 256
    """Examples of one update, over all ranks; exact."""
    batch_ramp: int = 0
    """Global batches over which the batch grows evenly from train.batch_ramp_from to train.global_batch; 0: all are
    alike. The learning rate does not follow it."""
    batch_ramp_from: int = 0
    """Examples of the first global batch of that ramp. Every batch is a multiple of the number of data.streams, of
    which there are by default as many as divide both ends."""
    micro_batch: int = 32
    """Token budget of one forward pass, in full-length examples: micro_batch x sequence_length tokens. 0: the largest
    that fits the memory of the run's GPUs and divides what a rank has of the global batch; on CPUs, of at most 4,096
    tokens. A run keeps what it chose when it resumes."""
    precision: str = "auto"
    """fp32, bf16, fp16; auto: bf16 on CUDA, fp32 on CPU. Masters, moments and reduction are fp32 in each."""
    clip: float = 1.0
    """Largest global gradient norm, applied before the moments; 0: no clipping."""
    eval_every: int = 0
    """Steps between evaluations on the held-out examples; 0: only at the end."""
    eval_examples: int = 2048
    """Held-out examples of one evaluation: always the first so many."""
    probe: str = ""
    """Task that the model is scored on while it trains, as by `maskmill evaluate`: blimp (a fixed tenth of it), or one
    of texts or words with a label (own, tagging, mrpc, uner, ...) that a linear model reads from the frozen encoder.
    Empty: none."""
    probe_data: str = ""
    """The task's folder, as --data of `maskmill evaluate`."""
    probe_every: int = 0
    """Steps between two scores; 0: only of the starting weights and at the end."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: only at the end."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations."""
    kernels: str = "auto"
    """Passes over memory of every optimizer but adamw: auto (Triton's kernels on CUDA where triton is installed, else
    torch), triton (or an error) or torch."""
    compile: str = "auto"
    """Fuse the model's operations with torch.compile, once, for one shape of micro-batch: on, off; auto: on on CUDA,
    and on a CPU where the run is so long that a minute or two of compiling pays."""
    on_nan: str = "skip"
    """What follows a batch whose gradient is not finite: `skip` it, `rollback` to the newest checkpoint and skip the
    batches since, or `stop`. Ten in a row end the run. fp16 always skips: there it is how the loss scale is found."""
    on_spike: str = "off"
    """What follows a batch whose loss is a spike: `skip`, `rollback`, `stop`, or `off`: losses are not watched."""
    spike_sigma: float = 6.0
    """A loss is a spike if it lies more than so many standard deviations above the mean of those before it."""
    spike_window: int = 128
    """So many losses before it; watched from half as many on."""
    deterministic: bool = True
    """Have torch use deterministic kernels alone, so that a repeated run is bit-equal (CUDA: somewhat slower)."""


@dataclass
class CheckpointSettings:
    keep: int = 2
    """Newest checkpoints that stay."""
    keep_every: int = 0
    """Every so many-th stays as well: those at multiples of keep_every x train.checkpoint_every steps; 0: none."""
    keep_best: bool = True
    """The one with the lowest held-out loss stays as well, of those at whose step train.eval_every had one measured."""
    mirror: str = ""
    """URI in an object store (s3://bucket/run) to which each checkpoint is copied in the background; a run whose folder
    has none left resumes from there."""


@dataclass
class ZeroSettings:
    stage: int = 1
    """DeepSpeed ZeRO: 0 nothing sharded, 1 optimizer state, 2 and gradients, 3 and parameters."""
    sub_group_size: int = 100_000_000
    """Stage 3: elements that the optimizer steps at a time."""
    offload: str = "none"
    """none, or cpu (stages 1 to 3): masters, moments and the optimizer's step in the host's memory, slower."""


@dataclass
class ElectraTwoStageSettings:
    generator: str = ""
    """Hugging Face folder of the finished generator: a masked language model of this run's vocabulary and widths, such
    as the export of a run of objective.name=mlm. The discriminator starts from its weights; it is never changed, and a
    part of the run's identity."""


@dataclass
class CausalSettings:
    direction: str = "left_to_right"
    """left_to_right, or right_to_left: each example's tokens are reversed, and a token predicts the one before it."""


@dataclass
class DistillationSettings:
    teacher: str = ""
    """Hugging Face folder of the model to learn from, with its head for masked words: of this run's vocabulary, widths
    and kind of encoder, as a BERT, RoBERTa or ModernBERT. Its weights are read once, never changed, and a part of the
    run's identity."""
    temperature: float = 2.0
    """What the logits of teacher and student are divided by before they are compared."""
    soft_weight: float = 5.0
    """Weight of the divergence from the teacher's predictions."""
    mlm_weight: float = 2.0
    """Weight of the loss of the masked tokens."""
    cos_weight: float = 1.0
    """Weight of one minus the cosine between the last hidden states of student and teacher."""
    masked_only: bool = False
    """Compare predictions at masked tokens only, a sixth of the work; false: at every token."""


@dataclass
class XlnetSettings:
    memory_length: int = 0
    """Hidden states that every layer keeps of the text before an example, for each stream of the global batch; needs
    data.order=sequential. 0: none, and any order."""


@dataclass
class ObjectiveSettings:
    name: str = "bert"
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
    tracker: str = "jsonl"
    """wandb (metrics.jsonl as well; offline without a key), tensorboard (metrics.jsonl as well; event files in the run
    folder), jsonl (metrics.jsonl), or none."""
    project: str = "maskmill"
    """W&B project."""
    id: str = ""
    """W&B run id; empty: drawn once and kept in the run folder."""
    group: str = ""
    """W&B group of the stages of one training (prepare, train, export); empty: the name of run.dir."""
    artifacts: str = "none"
    """What W&B gets as artifacts, with what was made from what: none; index (index.json, the vocabulary and the names
    and hashes of a checkpoint's files, no text and no weights); all (the exported model as well)."""
    alert_every: float = 3600.0
    """Seconds between two W&B alerts of one cause (NaN, spike, stall, slow rank, disk, restart, ...); 0: no alerts."""
    trust_ratios_every: int = 0
    """LAMB: steps between the lines of metrics.jsonl that hold the trust ratio of each tensor; 0: none."""
    peak_tflops: float = 0.0
    """Peak of one device for MFU; 0: known for common GPUs, measured on a CPU."""


@dataclass
class ExportSettings:
    license: str = ""
    """License that the model card states, by the hub's identifier where it has one (apache-2.0, mit, cc-by-sa-4.0);
    empty: not stated. `maskmill export --license` states another."""


@dataclass
class RunConfig:
    """One complete run, from sources to model."""

    data: DataSettings = field(default_factory=DataSettings)
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    run: RunSettings = field(default_factory=RunSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    zero: ZeroSettings = field(default_factory=ZeroSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    init_from: str = ""
    """A run, checkpoint or Hugging Face folder whose weights to start from; its schedule restarts. A Hugging Face
    folder also states the encoder, and, unless they are set, the objective and data.vocab."""
    init_moments: bool = False
    """With init_from a run or checkpoint: keep both moments as well, as the second of two phases does."""
    init_positions: str = "repeat"
    """With init_from a Hugging Face folder of fewer positions than encoder.max_positions, and in a phase of longer
    examples than those before, the vectors of new positions: `repeat` the old ones in their order, `interpolate`
    between neighbours over the whole length, or `fresh` ones."""
    init_new_words: str = "mean"
    """With init_from a Hugging Face folder whose vocabulary the run's extends (`maskmill vocab --extend`), the vectors
    and the output's biases of new entries: the `mean` of their old pieces', the `first` of these, or `fresh` ones."""
    phases: list[dict[str, Any]] = field(default_factory=list)
    """Parts of the run, one after the other: each a `name` and the settings that differ in it (data, schedule,
    optim.lr, the thetas of RoPE, and of train the shards, length, batches and intervals). Weights and both moments
    carry over from one to the next; schedule and bias correction restart, unless schedule.span=run. On the command
    line: phases.NAME.train.steps=100. Empty: the run has one part."""
