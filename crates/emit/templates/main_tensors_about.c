/* Reads the inputs from standard input, as f32, one after the other, and writes the outputs to standard output.
 *
 *   model [-w weights.bin] < inputs.f32 > outputs.f32
 */
