/* Attention within a step, without a cache: keys and values are used once and forgotten. */
enum { FLASH_KEY_BLOCK = 512, FLASH_FROM = 2048, QUERY_BLOCK = 48, SCORE_CHAIN = 256 };

/* Turns scores into weights relative to the largest so far; returns the factor that rescales the sums before. */
static float attention_weigh(float *scores, size_t n, float *largest, float *sum)
{
    float top = *largest;
    for (size_t i = 0; i < n; i++)
        top = top > scores[i] ? top : scores[i];
    if (top == -INFINITY) {
        memset(scores, 0, n * sizeof *scores);
        return 1.0f;
    }
    float factor = *largest == top ? 1.0f : expf(*largest - top), lanes[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        scores[i] = exp_lane(scores[i] - top);
        lanes[i % LANES] += scores[i];
    }
    *largest = top;
    *sum = *sum * factor + sum_lanes(lanes);
    return factor;
}

/* Tensors are [tokens][heads][dim] if `token_major`, else [heads][tokens][dim]. The mask is one byte per query and key, not zero where the query
 * sees the key, with these elements from one head and from one query to the next. The scratch holds a row of scores. */
void k_attention(const float *q, const float *k, const float *v, const uint8_t *mask, float *out, float *scores, size_t heads,
                 size_t kv_heads, size_t queries, size_t keys, size_t key_dim, size_t value_dim, float scale, float softcap,
                 int causal, int token_major, size_t mask_head, size_t mask_query)
{
    size_t q_token = token_major ? heads * key_dim : key_dim, q_head = token_major ? key_dim : queries * key_dim;
    size_t k_token = token_major ? kv_heads * key_dim : key_dim, k_head = token_major ? key_dim : keys * key_dim;
    size_t v_token = token_major ? kv_heads * value_dim : value_dim, v_head = token_major ? value_dim : keys * value_dim;
    size_t out_token = token_major ? heads * value_dim : value_dim, out_head = token_major ? value_dim : queries * value_dim;
    size_t block = keys >= FLASH_FROM ? FLASH_KEY_BLOCK : keys;
    for (size_t head = 0; head < heads; head++) {
        const float *head_keys = k + head / (heads / kv_heads) * k_head;
        const float *head_values = v + head / (heads / kv_heads) * v_head;
        for (size_t query = 0; query < queries; query++) {
            const float *from = q + head * q_head + query * q_token;
            float *to = out + head * out_head + query * out_token, largest = -INFINITY, sum = 0.0f;
            /* Queries are computed in blocks, which see the keys of their last query at most. */
            size_t last = (query / QUERY_BLOCK + 1) * QUERY_BLOCK, end = causal && last < keys ? last : keys;
            if (causal && end > queries)
                end = queries;
            for (size_t start = 0; start < end; start += block) {
                size_t count = end - start < block ? end - start : block;
                for (size_t i = 0; i < count; i++) {
                    const float *key = head_keys + (start + i) * k_token;
                    float score = 0.0f;
                    for (size_t depth = 0; depth < key_dim; depth += SCORE_CHAIN) {
                        float chain = 0.0f;
                        for (size_t d = depth; d < key_dim && d < depth + SCORE_CHAIN; d++)
                            chain += from[d] * key[d];
                        score = depth ? score + chain * scale : chain * scale;
                    }
                    if (softcap > 0.0f)
                        score = softcap * tanh_lane(score / softcap);
                    int seen = !causal || start + i <= query;
                    if (mask && !mask[head * mask_head + query * mask_query + start + i])
                        seen = 0;
                    scores[i] = seen ? score : -INFINITY;
                }
                float factor = attention_weigh(scores, count, &largest, &sum);
                if (start > 0 && factor != 1.0f)
                    for (size_t d = 0; d < value_dim; d++)
                        to[d] *= factor;
                for (size_t first = 0; first < count; first += SCORE_CHAIN)
                    for (size_t d = 0; d < value_dim; d++) {
                        float chain = 0.0f;
                        for (size_t i = first; i < count && i < first + SCORE_CHAIN; i++)
                            chain += scores[i] * head_values[(start + i) * v_token + d];
                        to[d] = start + first ? to[d] + chain : chain;
                    }
            }
            for (size_t d = 0; d < value_dim; d++)
                to[d] = sum > 0.0f ? to[d] * (1.0f / sum) : 0.0f;
        }
    }
}
