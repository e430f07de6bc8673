use super::*;
use crate::isa::Isa;
use crate::thread_pool::ThreadPool;
use conformance::TestRng;
use graph::ops::{AttendedRow, ScoreParams, attend_row};

struct Case {
    op: Attention,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Vec<f32>,
    seen: Vec<u8>,
}

impl Case {
    fn new(noise: &mut TestRng, op: Attention) -> Case {
        let Attention {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            key_dim,
            value_dim,
            ..
        } = op;
        let cells = batch * heads * queries * keys;
        Case {
            q: noise.units(batch * heads * queries * key_dim),
            k: noise.units(batch * kv_heads * keys * key_dim),
            v: noise.units(batch * kv_heads * keys * value_dim),
            bias: noise.units(cells),
            seen: (0..cells)
                .map(|_| u8::from(noise.bits() & 3 != 0))
                .collect(),
            op,
        }
    }

    fn run(&self, ctx: &Context<'_>) -> Vec<f32> {
        let op = &self.op;
        let mut scratch = vec![f32::NAN; op.scratch(ctx.threads.count()) / 4];
        let mut out = vec![f32::NAN; op.batch * op.heads * op.queries * op.value_dim];
        let mask = match &op.mask {
            Some(mask) if mask.dtype == DType::Bool => self.seen.as_ptr(),
            _ => self.bias.as_ptr().cast(),
        };
        let operands = AttentionOperands {
            q: self.q.as_ptr(),
            k: self.k.as_ptr(),
            v: self.v.as_ptr(),
            mask,
            out: out.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
        };
        // SAFETY: every operand has the size its shape says.
        unsafe { op.run(ctx, operands) };
        out
    }

    fn expect(&self) -> Vec<f32> {
        let op = &self.op;
        let mut out = vec![0.0; op.batch * op.heads * op.queries * op.value_dim];
        for row in 0..op.batch * op.heads * op.queries {
            let (head, query) = (row / op.queries, row % op.queries);
            let group = op.heads / op.kv_heads;
            let kv_head = head / op.heads * op.kv_heads + head % op.heads / group;
            let rows: Vec<AttendedRow<'_>> = (0..op.keys)
                .filter(|key| !op.causal || *key <= query)
                .filter_map(|key| {
                    let at = kv_head * op.keys + key;
                    let bias = match &op.mask {
                        None => 0.0,
                        Some(mask) => {
                            let at = mask.planes[head] + query * mask.row + key * mask.column;
                            match mask.dtype {
                                DType::Bool => (self.seen[at] != 0).then_some(0.0)?,
                                _ => self.bias[at],
                            }
                        }
                    };
                    Some(AttendedRow {
                        key: &self.k[at * op.key_dim..][..op.key_dim],
                        value: &self.v[at * op.value_dim..][..op.value_dim],
                        bias,
                    })
                })
                .collect();
            let scoring = ScoreParams {
                scale: op.scale,
                softcap: op.softcap,
            };
            let query = &self.q[row * op.key_dim..][..op.key_dim];
            attend_row(
                scoring,
                query,
                &rows,
                &mut out[row * op.value_dim..][..op.value_dim],
            );
        }
        out
    }
}

fn attention(
    (batch, heads, kv_heads): (usize, usize, usize),
    (queries, keys): (usize, usize),
    (key_dim, value_dim): (usize, usize),
) -> Attention {
    Attention {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        key_dim,
        value_dim,
        scale: 0.3,
        causal: false,
        softcap: None,
        mask: None,
        token_major: false,
        block: keys,
    }
}

#[test]
fn standard_and_flash_are_close_to_plain_loops() {
    let mut noise = TestRng::new(3);
    let mut cases = Vec::new();
    for (lengths, dims) in [
        ((1, 1), (5, 3)),
        ((7, 33), (16, 16)),
        ((70, 70), (24, 40)),
        ((50, 200), (33, 17)),
        ((3, 0), (8, 8)),
    ] {
        for heads in [(1, 2, 1), (2, 4, 2)] {
            let plain = attention(heads, lengths, dims);
            let planes = heads.0 * heads.1;
            let mask = |dtype| Mask {
                dtype,
                planes: (0..planes).map(|i| i * lengths.0 * lengths.1).collect(),
                row: lengths.1,
                column: 1,
            };
            for block in [lengths.1, 64, 32] {
                let with = |change: &dyn Fn(&mut Attention)| {
                    let mut op = plain.clone();
                    op.block = block;
                    change(&mut op);
                    op
                };
                cases.extend([
                    with(&|_| {}),
                    with(&|op| op.causal = true),
                    with(&|op| op.softcap = Some(0.5)),
                    with(&|op| op.mask = Some(mask(DType::F32))),
                    with(&|op| (op.causal, op.mask) = (true, Some(mask(DType::Bool)))),
                ]);
            }
        }
    }
    for op in cases {
        let case = Case::new(&mut noise, op);
        let expect = case.expect();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let threads = ThreadPool::new(threads);
                let ctx = Context {
                    isa,
                    threads: &threads,
                };
                for (i, (found, expect)) in case.run(&ctx).iter().zip(&expect).enumerate() {
                    let error = (found - expect).abs();
                    assert!(
                        error < 3e-6,
                        "{isa} {:?}: element {i} is {found}, not {expect}",
                        case.op
                    );
                }
            }
        }
    }
}

/// The number of keys chooses the path. Both paths give the numbers of plain loops on both sides of the threshold.
#[test]
fn the_threshold_chooses_flash_attention_and_the_numbers_stay() {
    let mut noise = TestRng::new(11);
    for keys in [FLASH_FROM - 1, FLASH_FROM, FLASH_FROM + 33] {
        let block = Attention::best_block(keys);
        let flash = keys >= FLASH_FROM;
        assert_eq!(block < keys, flash, "{keys} keys");
        let mut chosen = attention((1, 2, 1), (3, keys), (16, 24));
        chosen.block = block;
        chosen.mask = Some(Mask {
            dtype: DType::Bool,
            planes: vec![0, 3 * keys],
            row: keys,
            column: 1,
        });
        let mut other = chosen.clone();
        other.block = if flash { keys } else { FLASH_KEY_BLOCK };
        let memory = |op: &Attention| op.scratch(1);
        assert_eq!(memory(&chosen) < memory(&other), flash);

        let mut case = Case::new(&mut noise, chosen.clone());
        // The second query sees nothing of the first blocks, and the third sees nothing at all.
        case.seen[keys..][..3 * FLASH_KEY_BLOCK].fill(0);
        case.seen[2 * keys..][..keys].fill(0);
        let expect = case.expect();
        for isa in Isa::available() {
            let threads = ThreadPool::new(2);
            let ctx = Context {
                isa,
                threads: &threads,
            };
            for op in [&chosen, &other] {
                case.op = op.clone();
                for (i, (found, expect)) in case.run(&ctx).iter().zip(&expect).enumerate() {
                    let error = (found - expect).abs();
                    assert!(
                        error < 3e-6,
                        "{isa}, {keys} keys in blocks of {}: element {i} is {found}, not {expect}",
                        op.block
                    );
                }
            }
        }
    }
}
