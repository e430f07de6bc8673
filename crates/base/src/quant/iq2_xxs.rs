//! Two bits an element: eight elements are one of 256 patterns of magnitudes, and their signs.

use super::format::{BlockFormat, Codes, half_at};

/// The magnitudes 8, 25 and 43 of codes 0 to 2, and their negatives from code 8 on; doubled, which uses most of a byte, and so most of
/// the bits of packed weights.
const VALUES: [i8; 16] = [16, 50, 86, 0, 0, 0, 0, 0, -16, -50, -86, 0, 0, 0, 0, 0];

/// The patterns: bits `2j` and `2j + 1` are the magnitude of element `j`. `generate.py --grid` beside the fixtures prints them.
const GRID: [u16; 256] = [
    0, 2, 5, 8, 10, 17, 20, 32, 34, 40, 42, 65, 68, 80, 88, 97, 100, 128, 130, 138, 162, 257, 260,
    272, 277, 320, 388, 408, 512, 514, 546, 642, 1025, 1028, 1040, 1057, 1060, 1088, 1090, 1096,
    1120, 1153, 1156, 1168, 1188, 1280, 1282, 1288, 1312, 1350, 1385, 1408, 1425, 1545, 1552, 1600,
    1668, 1700, 2048, 2053, 2056, 2068, 2088, 2113, 2116, 2128, 2130, 2184, 2308, 2368, 2562, 2580,
    4097, 4100, 4112, 4129, 4160, 4192, 4228, 4240, 4245, 4352, 4360, 4384, 4432, 4442, 4480, 4644,
    4677, 5120, 5128, 5152, 5157, 5193, 5248, 5400, 5474, 5632, 5654, 6145, 6148, 6160, 6208, 6273,
    6400, 6405, 6560, 6737, 8192, 8194, 8202, 8260, 8289, 8320, 8322, 8489, 8520, 8704, 8706, 9217,
    9220, 9232, 9280, 9302, 9472, 9537, 9572, 9872, 10248, 10272, 10388, 10820, 16385, 16388,
    16400, 16408, 16417, 16420, 16448, 16456, 16470, 16480, 16513, 16516, 16528, 16640, 16672,
    16737, 16768, 16773, 16897, 16912, 16968, 16982, 17000, 17408, 17416, 17440, 17536, 17561,
    17682, 17700, 17920, 18433, 18436, 18448, 18496, 18501, 18688, 18776, 18785, 18818, 19013,
    19088, 20480, 20488, 20497, 20505, 20512, 20608, 20616, 20740, 20802, 20900, 21137, 21648,
    21650, 21770, 22017, 22100, 22528, 22545, 22553, 22628, 22848, 23048, 24580, 24592, 24640,
    24680, 24832, 24917, 25112, 25184, 25600, 25605, 25872, 25874, 25988, 26690, 32768, 32770,
    32778, 32833, 32898, 33028, 33048, 33088, 33297, 33793, 33796, 33808, 33813, 33856, 33888,
    34048, 34118, 34196, 34313, 34368, 34400, 34818, 35076, 35345, 36868, 36880, 36900, 36928,
    37025, 37142, 37248, 37445, 37888, 37922, 37956, 38225, 39041, 39200, 40962, 41040, 41093,
    41225, 41472, 42008, 43088, 43268,
];

/// `d: f16`, then for each of eight runs of 32 elements `patterns: [u8; 4], word: u32`; the element is
/// `d / 8 * (2 * scale + 1)` times its magnitude and sign.
///
/// Bits 28 to 31 of the word are the scale. Below are seven bits for each pattern: the signs of its first seven elements. The eighth
/// element's sign makes the number of negative elements even.
pub const IQ2_XXS: BlockFormat = BlockFormat {
    name: "iq2_xxs",
    number: 16,
    bytes: 66,
    codes: Codes::Table(&VALUES),
    unpack: |b, out| {
        out.scale = half_at(b, 0) / 16.0;
        for (run, b) in b[2..].chunks_exact(8).enumerate() {
            let word = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
            out.scales[run] = 2 * (word >> 28) as i8 + 1;
            for (part, pattern) in b[..4].iter().enumerate() {
                let signs = word >> (7 * part) & 127;
                let signs = signs | (signs.count_ones() & 1) << 7;
                let magnitudes = GRID[usize::from(*pattern)];
                let codes = &mut out.codes[run * 32 + part * 8..][..8];
                for (j, code) in codes.iter_mut().enumerate() {
                    *code = (magnitudes >> (2 * j) & 3) as u8 | (signs >> j << 3 & 8) as u8;
                }
            }
        }
    },
    element: "
    const u8 *run = b + 2 + e / 32 * 8;
    int part = e % 32 / 8, j = e % 8;
    u32 word = u32_at(run + 4), signs = word >> (7 * part) & 127;
    u32 parity = signs ^ signs >> 4;
    parity ^= parity >> 2;
    signs |= ((parity ^ parity >> 1) & 1) << 7;
    q.scale = half_at(b) / 16.0f * (float)(2 * (word >> 28) + 1);
    q.code = (int)((iq2_xxs_grid[run[part]] >> (2 * j) & 3) | (signs >> j & 1) << 3);",
    grid: &GRID,
    ..BlockFormat::TWO_LEVEL
};
