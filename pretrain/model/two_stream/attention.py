"""Attend with relative positions and relative segments, from two streams of queries to one of keys.

The score of a query and a key is (q + u) k' + (q + v) r' + (q + w) s', over the root of a head's size: r is the
projected sinusoid of their distance (Dai et al. 2019, Transformer-XL, section 3.3), s one of two vectors, for the same
segment and for another (Yang et al. 2019, XLNet, section 2.5). u, v and w are learnt for each head.

The terms of position and segment are added to torch's attention as a bias. So a pair of query and key takes three
products where BERT's takes two, and each layer keeps an (E, N, S, K) bias of every tile for the backward pass, in
either stream; the query stream's is computed for all tokens, of which a sixth are targets.

Shape legend: T packed tokens, R target rows, P rows that ask (those of one stream or of both), E examples, S length of
a tile, M length of the memory, K keys (M + S), W directions, L distances, N heads, D size of a head, H hidden size
(N * D).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretrain.config.encoder import EncoderSettings
from pretrain.model.initialize import bare
from pretrain.model.two_stream.plan import StreamPlan, StreamTile

SLOWEST = 10_000
"""Ratio of the longest wavelength of the sinusoids to the shortest."""


def sinusoids(
    longest: int, memory_length: int, hidden: int, device: torch.device, both_directions: bool = False
) -> Tensor:
    """Compute the (W, L, H) vectors of the distances M + S, ..., -S + 1 of examples of up to S = `longest` tokens:
    sines, then cosines, float32 as in the published code. With `both_directions` there are two rows of W, the second
    one for -M - S, ..., S - 1."""
    distance_L = torch.arange(memory_length + longest, -longest, -1, device=device).float()
    exponents = torch.arange(0, hidden, 2, device=device).float() / hidden
    angles = distance_L[:, None] * (1 / torch.pow(SLOWEST, exponents))
    ways = torch.stack((angles, -angles)) if both_directions else angles[None]
    return torch.cat((ways.sin(), ways.cos()), dim=-1)[..., :hidden]


def by_place(x_ENSL: Tensor, keys: int) -> Tensor:
    """Turn a column for each distance into one for each key: (..., S, K + S) -> (..., S, K).

    Column c of every row is of distance K - c; the result has distance M + i - k in row i and column k, M = K - S.
    Each row is one column further than the row above it, which is a change of strides (Dai et al. 2019, appendix B)."""
    *others, rows, columns = x_ENSL.shape
    shifted = x_ENSL.reshape(*others, columns, rows)[..., 1:, :].reshape(*others, rows, columns - 1)
    return shifted[..., :keys]


class RelativeAttention(nn.Module):
    """Multi-head attention of both streams, with the same matrices and none of their biases.

    u, v and w are called after what they are added for; their names do not end like a bias's, which would start from
    0."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        hidden, heads = settings.hidden, settings.heads
        self.heads, self.size = heads, hidden // heads
        self.dropout = settings.attention_dropout
        self.query = bare(nn.Linear, hidden, hidden, bias=False)
        self.key = bare(nn.Linear, hidden, hidden, bias=False)
        self.value = bare(nn.Linear, hidden, hidden, bias=False)
        self.relative = bare(nn.Linear, hidden, hidden, bias=False)
        self.output = bare(nn.Linear, hidden, hidden, bias=False)
        self.for_content = nn.Parameter(torch.empty(heads, self.size))
        self.for_position = nn.Parameter(torch.empty(heads, self.size))
        self.for_segment = nn.Parameter(torch.empty(heads, self.size))
        self.segments = nn.Parameter(torch.empty(2, heads, self.size))

    def forward(
        self,
        asking_PH: Tensor,
        content_TH: Tensor,
        memory_EMH: Tensor | None,
        distances_WLH: Tensor,
        plan: StreamPlan,
        content_rows: int,
    ) -> Tensor:
        """Compute (P, H) for the rows that ask: the first `content_rows` of them (all tokens, or none) are the content
        stream's, the others the query stream's (the plan's targets, or none)."""
        q_PND = self._by_head(self.query(asking_PH))
        keyed = content_TH if memory_EMH is None else torch.cat((content_TH, memory_EMH.flatten(0, 1)))
        k_XND, v_XND = self._by_head(self.key(keyed)), self._by_head(self.value(keyed))
        r_WNLD = self._by_head(self.relative(distances_WLH)).transpose(1, 2)
        content, query = q_PND[:content_rows], q_PND[content_rows:]
        query = torch.cat(
            (query, query.new_zeros(1, *query.shape[1:]))
        )  # asked for by tokens that are no target
        of_content, of_query = [], []
        for tile in plan.tiles:
            k, v = (_tiled(x, tile.keys_EK) for x in (k_XND, v_XND))
            first = plan.longest - tile.rows_ES.shape[1]
            r = r_WNLD[:, :, first : first + tile.rows_ES.shape[1] + tile.keys_EK.shape[1]]
            if tile.backwards_E is not None:
                r = r.index_select(0, tile.backwards_E)
            if content_rows:
                q = _tiled(content, tile.rows_ES)
                of_content.append(self._attend(q, k, v, r, tile, tile.content_E1SK))
            if len(asking_PH) > content_rows or not content_rows:  # every parameter gets a gradient, if 0
                q = _tiled(query, tile.targets_ES)
                of_query.append(self._attend(q, k, v, r, tile, tile.query_E1SK))
        attended = []
        if of_content:
            attended.append(torch.cat(of_content).index_select(0, plan.back_T))
        if of_query:
            attended.append(torch.cat(of_query).index_select(0, plan.back_T[plan.targets_R]))
        return self.output(torch.cat(attended))

    def _attend(
        self,
        q_ENSD: Tensor,
        k_ENKD: Tensor,
        v_ENKD: Tensor,
        r_ENLD: Tensor,
        tile: StreamTile,
        hidden_E1SK: Tensor,
    ) -> Tensor:
        """Attend in one tile: (E * S, H), 0 for a query that sees no key."""
        position = by_place((q_ENSD + self.for_position[:, None]) @ r_ENLD.transpose(-1, -2), k_ENKD.shape[2])
        segment = (q_ENSD + self.for_segment[:, None]) @ self.segments.permute(1, 2, 0)
        segment = torch.where(tile.differs_E1SK, segment[..., 1:], segment[..., :1])
        bias = ((position + segment) * self.size**-0.5).masked_fill(
            hidden_E1SK, torch.finfo(position.dtype).min
        )
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(
            q_ENSD + self.for_content[:, None], k_ENKD, v_ENKD, attn_mask=bias, dropout_p=dropout
        )
        seen = seen.masked_fill(hidden_E1SK.all(-1, keepdim=True), 0.0)
        return seen.transpose(1, 2).flatten(0, 1).flatten(-2)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.size))


def _tiled(x_XND: Tensor, rows_ES: Tensor) -> Tensor:
    """Gather the rows of a tile: (E, N, S, D)."""
    return x_XND.index_select(0, rows_ES.flatten()).unflatten(0, rows_ES.shape).transpose(1, 2)
