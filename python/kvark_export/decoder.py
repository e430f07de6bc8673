"""Hugging Face decoders with their attention replaced by the op `kvcache::update_and_attend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from . import op  # registers kvcache::update_and_attend
from .metadata import cache_metadata

#: Architectures whose exports are tested.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2")
IMPLEMENTATION = "kvark"


class ExportError(Exception):
    """A model that cannot be exported; the message says why."""


@dataclass
class _Step:
    """State of the running forward that the attention function needs and the model's layers do not pass to it."""

    position: torch.Tensor | None = None


_step = _Step()


def _attention(module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, softcap=None, **_):
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    arguments = (query, key, value, _step.position, module.layer_idx, float(scale), query.dtype)
    if softcap:
        out = torch.ops.kvcache.update_and_attend.softcap(*arguments, float(softcap))
    else:
        out = torch.ops.kvcache.update_and_attend(*arguments)
    return out.transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, _attention)
# The cache decides which rows a query sees, so no mask is built.
AttentionMaskInterface.register(IMPLEMENTATION, lambda **_: None)


class Decoder(torch.nn.Module):
    """`(tokens [1, T], position [T, 1]) -> logits [1, T, vocab]`, and with `features` also `[1, T, n * hidden]`.

    The features are what an Eagle3 head takes: the inputs to n layers, side by side. `True` stands for layers 2, L/2 and L-3.
    """

    def __init__(self, model: PreTrainedModel, features: bool | Sequence[int] = False):
        super().__init__()
        kind = model.config.model_type
        if kind not in ARCHITECTURES:
            raise ExportError(f"architecture {kind!r} is not one of {', '.join(ARCHITECTURES)}")
        model.set_attn_implementation(IMPLEMENTATION)
        self.model = model
        layers = self.layers()
        self.feature_layers = chosen_layers(features, len(layers))
        self._features: dict[int, torch.Tensor] = {}
        for index in sorted(set(self.feature_layers)):
            layers[index].register_forward_pre_hook(self._keep(index), with_kwargs=True)

    def _keep(self, index: int):
        def hook(_module, args, kwargs):
            self._features[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    def layers(self) -> torch.nn.ModuleList:
        """The decoder layers in order."""
        inner = self.model.base_model
        return inner.h if hasattr(inner, "h") else inner.layers

    def forward(self, tokens: torch.Tensor, position: torch.Tensor):
        _step.position = position
        try:
            logits = self.model(
                input_ids=tokens, position_ids=position.transpose(0, 1), use_cache=False, return_dict=True
            ).logits
            if not self.feature_layers:
                return logits
            return logits, torch.cat([self._features[i] for i in self.feature_layers], -1)
        finally:
            _step.position = None
            self._features.clear()


def feature_layers(layers: int) -> tuple[int, ...]:
    """The layers whose inputs an Eagle3 head takes."""
    if layers < 4:
        raise ExportError(f"features are the inputs to layers 2, L/2 and L-3; this model has {layers} layers")
    return (2, layers // 2, layers - 3)


def chosen_layers(features: bool | Sequence[int], layers: int) -> tuple[int, ...]:
    """The layers of a choice of features, in a model of so many layers."""
    if isinstance(features, bool):
        return feature_layers(layers) if features else ()
    for layer in features:
        if not 0 <= layer < layers:
            raise ExportError(f"there is no layer {layer} for features; this model has {layers} layers")
    return tuple(features)


def windows(config) -> list[int]:
    """The sliding window of each layer; 0 for full attention."""
    count = config.num_hidden_layers
    window = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    return [window if getattr(config, "use_sliding_window", True) else 0] * count


def facts(config, max_step: int, features: bool | Sequence[int] = False) -> dict:
    """The cache metadata of a decoder, and the layers of its features."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    count = config.num_hidden_layers
    metadata = cache_metadata(
        kv_heads=[heads] * count,
        head_dims=[dim] * count,
        windows=windows(config),
        prefill_chunk=max_step,
        max_context=config.max_position_embeddings,
    )
    layers = chosen_layers(features, count)
    if layers:
        metadata["kvark.feature_layers"] = list(layers)
    return metadata


def export_decoder(
    model: PreTrainedModel, *, features: bool | Sequence[int] = False, max_step: int = 2048
) -> tuple[Decoder, torch.export.ExportedProgram]:
    """Exports a decoder with a dynamic number of tokens, 1 to `max_step`."""
    decoder = Decoder(model.eval(), features).eval()
    max_step = min(max_step, model.config.max_position_embeddings)
    tokens = torch.export.Dim("T", min=1, max=max_step)
    example = (torch.zeros(1, 3, dtype=torch.long), torch.arange(3).unsqueeze(-1))
    with torch.no_grad():
        program = torch.export.export(decoder, example, dynamic_shapes=({1: tokens}, {0: tokens}))
    return decoder, program
