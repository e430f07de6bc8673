/* The six-bit scale and minimum of a group of a q4_k or q5_k block. */
static void scale_and_min(const uint8_t *packed, int group, int *scale, int *min)
{
    int i = group % 4;
    if (group < 4) {
        *scale = packed[i] & 63;
        *min = packed[4 + i] & 63;
    } else {
        *scale = (packed[8 + i] & 15) | packed[i] >> 6 << 4;
        *min = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
    }
}
