"""Common architectures with tiny random weights: `ARCHITECTURES[name] = (family, build)`.

`build()` gives a module that takes and gives tensors, and example arguments.
"""

import torch
import transformers as t
from torch import nn

ARCHITECTURES = {}

VOCABULARY = 64
TOKENS = 9
IMAGE = 32


class Wrap(nn.Module):
    """A transformers model as a function of tensors; gives the named fields of its result."""

    def __init__(self, model, names, fields, **fixed):
        super().__init__()
        self.model, self.names, self.fields, self.fixed = model, names, fields, fixed

    def forward(self, *args):
        result = self.model(**dict(zip(self.names, args)), **self.fixed)
        return tuple(getattr(result, field) for field in self.fields)


def spread(module):
    """Weights large enough that every part of the model shows in its outputs, and running statistics that are not 0 and 1."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                # Keeps the size of activations, whatever the depth.
                parameter.normal_(0, min(0.3, parameter[0].numel() ** -0.5))
            elif "norm" in name.lower() or "ln" in name or "bn" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0, 0.1)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    return module.eval()


def ids():
    return torch.randint(3, VOCABULARY, (2, TOKENS))


def mask():
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, 6:] = 0
    return mask


def add(family, name, build):
    def seeded():
        torch.manual_seed(sum(map(ord, name)))
        module, args = build()
        return spread(module), args

    ARCHITECTURES[name] = (family, seeded)


SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=64,
)


def encoder(name, kind, **sizes):
    def build():
        model = getattr(t, f"{kind}Model")(getattr(t, f"{kind}Config")(**sizes))
        return Wrap(model, ["input_ids", "attention_mask"], ["last_hidden_state"]), (ids(), mask())

    add("text encoder", name, build)


def decoder(name, kind, **sizes):
    def build():
        config = getattr(t, f"{kind}Config")(**sizes)
        model = t.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if "Moe" in kind or "Mixtral" in kind:
            # The default groups tokens by expert, whose sizes depend on data.
            model.set_experts_implementation("batched_mm")
        return Wrap(model, ["input_ids"], ["logits"], use_cache=False), (ids(),)

    add("text decoder", name, build)


encoder("BERT", "Bert", **SMALL)
encoder("RoBERTa", "Roberta", **SMALL)
encoder("XLM-RoBERTa", "XLMRoberta", **SMALL)
encoder("DistilBERT", "DistilBert", vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
encoder("ALBERT", "Albert", embedding_size=16, **SMALL)
encoder("ELECTRA", "Electra", embedding_size=16, **SMALL)
encoder("DeBERTa-v2", "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, **SMALL)
encoder("MPNet", "MPNet", **SMALL)
encoder("ModernBERT", "ModernBert", pad_token_id=0, local_attention=4, **SMALL)

LLAMA = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
SIZED = LLAMA | {"head_dim": 8}
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}
decoder("Llama", "Llama", **LLAMA)
decoder("Mistral", "Mistral", sliding_window=4, **LLAMA)
decoder("Qwen2", "Qwen2", **LLAMA)
decoder("Qwen3", "Qwen3", **SIZED)
decoder("Gemma 2", "Gemma2", **SIZED, **WINDOWS)
decoder("Gemma 3", "Gemma3Text", **SIZED, **WINDOWS)
decoder("Phi-3", "Phi3", **LLAMA)
decoder("OLMo 2", "Olmo2", **LLAMA)
decoder("Granite", "Granite", **LLAMA)
decoder("Cohere", "Cohere", **LLAMA)
decoder("StableLM", "StableLm", **LLAMA)
decoder("StarCoder2", "Starcoder2", **LLAMA)
decoder("GPT-2", "GPT2", vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4)
decoder("GPT-NeoX", "GPTNeoX", **SMALL)
decoder("OPT", "OPT", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48,
        max_position_embeddings=64, word_embed_proj_dim=32)
decoder("BLOOM", "Bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
decoder("Falcon", "Falcon", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
decoder("Mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2, **LLAMA)
decoder("Qwen3-MoE", "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, **SIZED)
decoder("Mamba", "Mamba", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)


def t5():
    config = t.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    model = t.T5ForConditionalGeneration(config)
    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    return Wrap(model, names, ["logits"], use_cache=False), (ids(), mask(), ids()[:, :5])


def bart():
    config = t.BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
    )
    model = t.BartForConditionalGeneration(config)
    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    return Wrap(model, names, ["logits"], use_cache=False), (ids(), mask(), ids()[:, :5])


def whisper():
    config = t.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=16, max_source_positions=20,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )
    model = t.WhisperForConditionalGeneration(config)
    args = (torch.randn(2, 16, 40), ids()[:, :5])
    return Wrap(model, ["input_features", "decoder_input_ids"], ["logits"], use_cache=False), args


def wav2vec2(kind):
    def build():
        config = getattr(t, f"{kind}Config")(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_dim=[16, 16, 16],
            conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
            vocab_size=32,
        )
        model = getattr(t, f"{kind}Model")(config)
        return Wrap(model, ["input_values"], ["last_hidden_state"]), (torch.randn(2, 400),)

    return build


add("encoder and decoder", "T5", t5)
add("encoder and decoder", "BART", bart)
add("speech", "Whisper", whisper)
add("speech", "wav2vec 2.0", wav2vec2("Wav2Vec2"))
add("speech", "HuBERT", wav2vec2("Hubert"))

PATCHES = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=IMAGE, patch_size=8,
)


def image(*shape):
    return torch.randn(2, 3, *(shape or (IMAGE, IMAGE)))


def vision(name, kind, field="last_hidden_state", **sizes):
    def build():
        config = getattr(t, f"{kind}Config")(**sizes)
        model = getattr(t, f"{kind}Model")(config)
        return Wrap(model, ["pixel_values"], [field]), (image(),)

    add("vision", name, build)


vision("ViT", "ViT", **PATCHES)
vision("DeiT", "DeiT", **PATCHES)
vision("SigLIP (vision)", "SiglipVision", **PATCHES)
vision("CLIP (vision)", "CLIPVision", field="pooler_output", **PATCHES)
vision("DINOv2", "Dinov2", **PATCHES)
vision("BEiT", "Beit", use_relative_position_bias=True, **PATCHES)
vision("Swin", "Swin", image_size=IMAGE, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
vision("SegFormer", "Segformer", depths=[1, 1], hidden_sizes=[16, 32], num_attention_heads=[1, 2],
       num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2])


def clip():
    text = SMALL | {"eos_token_id": 2, "pad_token_id": 1}
    config = t.CLIPConfig(text_config=text, vision_config=PATCHES, projection_dim=16)
    model = t.CLIPModel(config)
    text = ids()
    text[:, -2] = 2
    args = (text, image(), torch.ones(2, TOKENS, dtype=torch.int64))
    return Wrap(model, ["input_ids", "pixel_values", "attention_mask"], ["logits_per_image"]), args


add("text and vision", "CLIP", clip)


def timm_model(name, kind, size=64, **changes):
    def build():
        import timm

        model = timm.create_model(kind, pretrained=False, num_classes=10, **changes)
        return model, (image(size, size),)

    add("vision", name, build)


timm_model("ResNet", "resnet18", channels=(8, 16, 24, 32))
timm_model("ResNeXt", "resnext50_32x4d", cardinality=4, base_width=8, channels=(8, 16, 16, 16), layers=(1, 1, 1, 1))
timm_model("ConvNeXt", "convnext_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32))
timm_model("ConvNeXt V2", "convnextv2_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32))
timm_model("EfficientNet", "efficientnet_b0")
timm_model("MobileNetV3", "mobilenetv3_small_050")
timm_model("MobileNetV2", "mobilenetv2_035")
timm_model("RegNet", "regnetx_002")
timm_model("DenseNet", "densenet121", growth_rate=8, block_config=(2, 2, 2, 2))
timm_model("VGG", "vgg11_bn")
timm_model("MLP-Mixer", "mixer_s32_224", img_size=64)
timm_model("MobileViT", "mobilevit_xxs")
timm_model("PVTv2", "pvt_v2_b0")
timm_model("MaxViT", "maxvit_rmlp_pico_rw_256", img_size=64)
timm_model("EVA-02", "eva02_tiny_patch14_224", size=56, img_size=56, depth=2)
timm_model("RepViT", "repvit_m0_9")
