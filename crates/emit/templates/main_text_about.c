/* Reads text or token ids and prints the same.
 *
 *   model [-w weights.bin] [-t tokenizer.bin] [-n COUNT] [-e STOP_ID] [-l LOGITS_FILE] [-k] [-s] [-p TEXT | ID...]
 *
 * Ids are read from standard input if neither is given. -n is the number of tokens to generate, -e a token that ends the text,
 * -l writes the logits of every call as f32, -k computes without the KV cache, -s converts the text of control tokens to these
 * tokens. The best token is always taken; text also ends with the model's own tokens for that.
 */
