"""Define XLNet in transformers: its weights put the input first, and [CLS] is the last token of an example."""

from functools import partial
from typing import TYPE_CHECKING, Any

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import CLS_SEGMENT, RunConfig
from pretrain.huggingface.base import Config, Family, Field, Head, Weight
from pretrain.huggingface.bert import ACTIVATIONS, READABLE_ACTIVATIONS

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

    from pretrain.model.batch import MicroBatch


_LAYER, _THEIR_LAYER = "encoder.layers.{i}", "transformer.layer.{i}"


def _by_head(weight: "Tensor", config: Config) -> "Tensor":
    """Split a Linear's rows by head: (heads * size, H) -> (H, heads, size)."""
    return weight.T.reshape(weight.shape[1], config["n_head"], -1)


def _joined(weight: "Tensor", config: Config) -> "Tensor":
    return weight.flatten(1).T.contiguous()


def _output_by_head(weight: "Tensor", config: Config) -> "Tensor":
    """Split a Linear's columns by head: (H, heads * size) -> (H, heads, size)."""
    return weight.reshape(weight.shape[0], config["n_head"], -1)


def _output_joined(weight: "Tensor", config: Config) -> "Tensor":
    return weight.flatten(1)


def _target(vector: "Tensor", config: Config) -> "Tensor":
    """Add two dimensions: (H,) -> (1, 1, H)."""
    return vector.reshape(1, 1, -1)


def _vector(target: "Tensor", config: Config) -> "Tensor":
    return target.flatten()


class XlNet(Family):
    """A family whose inputs are in another order than ours, and whose logits are of two streams."""

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the encoder settings stated in a config.json, by name; None for those that it lacks or we do not
        have."""
        return super().settings(config) | {"segments": 0}

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype: with the length of the memory, which is used
        where a caller asks for it."""
        length = run.objective.xlnet.memory_length
        return super().config(run, vocabulary) | {"mem_len": length or None, "use_mems_eval": False}

    def inputs(self, batch: "MicroBatch", pad: int) -> "dict[str, Tensor]":
        """Return the inputs of transformers' forward for a packed batch, padded on the right: [CLS] behind the text,
        in segment 2."""
        example, place = batch.example_index, places(batch)
        shape = (len(batch.lengths), max(batch.lengths))
        columns = {
            "input_ids": batch.input_ids.new_full(shape, pad),
            "token_type_ids": batch.input_ids.new_zeros(shape),
            "attention_mask": batch.input_ids.new_zeros(shape),
        }
        columns["input_ids"][example, place] = batch.input_ids
        segments = batch.segment_ids.masked_fill(batch.positions == 0, CLS_SEGMENT)
        columns["token_type_ids"][example, place] = segments
        columns["attention_mask"][example, place] = 1
        return columns

    def logits(
        self, model: "transformers.PreTrainedModel", batch: "MicroBatch", pad: int
    ) -> "dict[str, Tensor]":
        """Compute their logits for a packed batch: of the content stream, and of the query stream with every token as
        a target that sees all others, both (tokens, words)."""
        example, place, inputs = batch.example_index, places(batch), self.inputs(batch, pad)
        itself = batch.input_ids.new_ones(inputs["input_ids"].shape).float().diag_embed()
        itself = itself.to(model.dtype)
        encoder: Any = model.transformer
        handles = [layer.register_forward_pre_hook(same_dtype, with_kwargs=True) for layer in encoder.layer]
        try:
            asked = {"perm_mask": itself, "target_mapping": itself}
            content, query = model(**inputs), model(**inputs, **asked)
        finally:
            for handle in handles:
                handle.remove()
        return {"content": content.logits[example, place], "plm": query.logits[example, place]}


def places(batch: "MicroBatch") -> "Tensor":
    """Return the place of each token in its example in XLNet's order: (T,) int64."""
    last_T = (batch.cu_seqlens.diff() - 1).index_select(0, batch.example_index).to(batch.positions.dtype)
    return (batch.positions - 1).where(batch.positions > 0, last_T)


def same_dtype(layer: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Give a layer its sinusoids in the dtype of its weights: with targets, transformers leaves them in float32."""
    return arguments, named | {"r": named["r"].to(layer.rel_attn.r.dtype)}


_BY_HEAD = partial(Weight, to=_by_head, back=_joined)

XLNET_LM = XlNet(
    export_class="XLNetLMHeadModel",
    model_type="xlnet",
    objective="xlnet",
    prefix="transformer",
    what="XLNet: an encoder with relative positions, trained to predict tokens in random orders. It has no pooler:"
    " classifiers read the vector of the last token.",
    names={
        "encoder.embeddings.word": "transformer.word_embedding",
        "encoder.embeddings.target": Weight("transformer.mask_emb", _target, _vector),
        **{
            f"{_LAYER}.attention.{ours}.weight": _BY_HEAD(f"{_THEIR_LAYER}.rel_attn.{theirs}")
            for ours, theirs in {"query": "q", "key": "k", "value": "v", "relative": "r"}.items()
        },
        f"{_LAYER}.attention.output.weight": Weight(
            f"{_THEIR_LAYER}.rel_attn.o", _output_by_head, _output_joined
        ),
        f"{_LAYER}.attention.for_content": f"{_THEIR_LAYER}.rel_attn.r_w_bias",
        f"{_LAYER}.attention.for_position": f"{_THEIR_LAYER}.rel_attn.r_r_bias",
        f"{_LAYER}.attention.for_segment": f"{_THEIR_LAYER}.rel_attn.r_s_bias",
        f"{_LAYER}.attention.segments": f"{_THEIR_LAYER}.rel_attn.seg_embed",
        f"{_LAYER}.attention_norm": f"{_THEIR_LAYER}.rel_attn.layer_norm",
        f"{_LAYER}.feed_forward.intermediate": f"{_THEIR_LAYER}.ff.layer_1",
        f"{_LAYER}.feed_forward.output": f"{_THEIR_LAYER}.ff.layer_2",
        f"{_LAYER}.feed_forward_norm": f"{_THEIR_LAYER}.ff.layer_norm",
        "plm_head": "lm_loss",  # its bias, one number per word
    },
    heads={"plm": Head("logits"), "content": Head("logits")},
    fields={
        "layers": "n_layer",
        "hidden": "d_model",
        "heads": "n_head",
        "intermediate": "d_inner",
        "activation": Field("ff_activation", ACTIVATIONS.__getitem__, READABLE_ACTIVATIONS.get),
        "layer_norm_eps": "layer_norm_eps",
        "dropout": "dropout",
        "initializer_range": "initializer_range",
    },
    fixed={
        "tie_word_embeddings": True,
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
    },
    defaults={"ff_activation": "gelu", "layer_norm_eps": 1e-12},
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    cls_last=True,
    pipeline="",
    tags=("xlnet", "permutation-language-modeling"),
)
