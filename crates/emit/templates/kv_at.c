static struct kv_layer kv_at(uint8_t *state, int layer)
{
    struct kv_layer kv = {state + KV[layer].keys, state + KV[layer].values, KV[layer].heads, KV[layer].rows,
                          KV[layer].key_dim, KV[layer].value_dim, KV[layer].key_type, KV[layer].value_type};
    return kv;
}

