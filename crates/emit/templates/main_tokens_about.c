/* Reads token ids and prints token ids.
 *
 *   model [-w weights.bin] [-n COUNT] [-e STOP_ID] [-l LOGITS_FILE] [-k] [ID...]
 *
 * Ids are read from standard input if none are given. -n is the number of tokens to generate, -e a token that ends the text,
 * -l writes the logits of every call as f32, -k computes without the KV cache. The best token is always taken.
 */
