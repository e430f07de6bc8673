//! Finds a node's kernel and its sizes.

use super::call::{CachedAttentionCall, Call};
use super::node_error;
use super::weight_layouts::WeightLayouts;
use crate::kernels::attention::cached::CachedAttention;
use crate::kernels::attention::plain::{Attention, Mask};
use crate::kernels::attention::rope::{Rope, RopeTable};
use crate::kernels::axis_view::AxisView;
use crate::kernels::conv::pool::Pool;
use crate::kernels::conv::{Conv, ConvShape};
use crate::kernels::elementwise::generate::Generate;
use crate::kernels::elementwise::scalar::{Cast, Compare, IntegerBinary, IntegerUnary, Where};
use crate::kernels::elementwise::{Elementwise, Function};
use crate::kernels::grid_sample::GridSample;
use crate::kernels::loop_nest::LoopNest;
use crate::kernels::matmul::experts::{ExpertProduct, Experts};
#[cfg(target_arch = "x86_64")]
use crate::kernels::matmul::f32::tiles::AmxLinear;
use crate::kernels::matmul::f32::{MatMul, RhsLayout};
use crate::kernels::matmul::half::HalfLinear;
use crate::kernels::matmul::quantised::QuantisedLinear;
use crate::kernels::matmul::quantised::format::{PANEL, PackedFormat};
use crate::kernels::normalise::norm::Norm;
use crate::kernels::normalise::softmax::Softmax;
use crate::kernels::rearrange::copy::CopyStrided;
use crate::kernels::rearrange::gather::{AdvancedIndex, GatherBlocks, GatherElements};
use crate::kernels::rearrange::gather_rows::GatherRows;
use crate::kernels::rearrange::scatter::Scatter;
use crate::kernels::rearrange::triangle::Triangle;
use crate::kernels::rearrange::windows::{Slide, Windows};
use crate::kernels::recurrent::causal_conv::{CausalConv, MAX_TAPS};
use crate::kernels::recurrent::linear_attention::LinearAttention;
use crate::kernels::reduce::Reduce;
use crate::kernels::reduce::arg_sort::ArgSort;
use crate::kernels::reduce::cumsum::CumSum;
use crate::kernels::reduce::route_experts::RouteExperts;
use backend::BackendError;
use base::DType;
use graph::ops::{self, BufferReuse, Op, broadcast_strides, strides};
use graph::{Bindings, Graph, Node, TensorType};

impl Call {
    /// Resolves `node` under concrete symbols.
    pub(crate) fn new(
        graph: &Graph,
        node: &Node,
        bindings: &Bindings,
        layouts: &WeightLayouts,
    ) -> Result<Call, BackendError> {
        Sizes::new(graph, node, bindings)
            .and_then(|sizes| sizes.call(&node.op, bindings, layouts))
            .map_err(|reason| node_error(graph, node, reason))
    }
}

/// A node's operands and result under concrete symbols.
struct Sizes<'a> {
    node: &'a Node,
    types: Vec<&'a TensorType>,
    inputs: Vec<Vec<usize>>,
    output: Vec<usize>,
    dtype: DType,
}

impl<'a> Sizes<'a> {
    fn new(graph: &'a Graph, node: &'a Node, bindings: &Bindings) -> Result<Sizes<'a>, String> {
        let dims = |id: &graph::TensorId| {
            let tensor = graph.tensor(*id);
            let dims = tensor.ty.dims(bindings);
            dims.ok_or_else(|| format!("{} has no size", tensor.name))
        };
        Ok(Sizes {
            node,
            types: node.inputs.iter().map(|id| &graph.tensor(*id).ty).collect(),
            inputs: node.inputs.iter().map(dims).collect::<Result<_, _>>()?,
            output: dims(&node.output)?,
            dtype: graph.tensor(node.output).ty.dtype,
        })
    }

    fn input_type(&self, i: usize) -> DType {
        self.types[i].dtype
    }

    /// Bytes of an element of the result.
    fn element_bytes(&self) -> usize {
        self.dtype.block_bytes()
    }

    fn len(&self) -> usize {
        self.output.iter().product()
    }

    /// The result's rows and their width.
    fn rows(&self) -> (usize, usize) {
        let (width, outer) = self
            .output
            .split_last()
            .map_or((1, &[][..]), |(w, o)| (*w, o));
        (outer.iter().product(), width)
    }

    /// The loops over the result and the operands `first..first + N - 1`, broadcast to it.
    fn nest<const N: usize>(&self) -> Result<LoopNest<N>, String> {
        let own = strides(&self.output);
        let walks: Vec<Vec<usize>> = self.inputs[..N - 1]
            .iter()
            .map(|shape| broadcast_strides(shape, &self.output))
            .collect();
        let mut all: [&[usize]; N] = [&own; N];
        for (to, walk) in all[1..].iter_mut().zip(&walks) {
            *to = walk;
        }
        let nest = LoopNest::new(&self.output, all);
        nest.fits().then_some(nest).ok_or_else(too_many_axes)
    }

    /// An elementwise function of contiguous f32 operands of the result's shape.
    fn elementwise(&self, function: Function) -> Call {
        Call::Elementwise(Elementwise {
            function,
            nest: contiguous(self.len()),
        })
    }

    fn call(&self, op: &Op, bindings: &Bindings, layouts: &WeightLayouts) -> Result<Call, String> {
        if let BufferReuse::Alias { .. } = op.sharing(&self.types, bindings)? {
            return Ok(Call::Alias);
        }
        let (rows, width) = self.rows();
        let output = &self.output;
        Ok(match op {
            Op::Linear(op) => self.linear(op, layouts),
            Op::MatMul(op) => self.mat_mul(op),
            Op::Attention(op) => Call::Attention(self.attention(op)),
            Op::Experts(op) => Call::Experts(self.experts(op, layouts)?),
            Op::RouteExperts(op) => Call::RouteExperts(RouteExperts {
                op: op.clone(),
                rows,
                experts: width,
            }),
            Op::GatherRows(_) => Call::GatherRows(GatherRows {
                count: rows,
                table_rows: self.inputs[0][0],
                width: self.inputs[0][1],
                table: self.input_type(0),
                index: self.input_type(1),
            }),
            Op::RmsNorm(ops::RmsNorm { eps }) | Op::LayerNorm(ops::LayerNorm { eps }) => {
                let (eps, centred) = (*eps, matches!(op, Op::LayerNorm(_)));
                Call::Norm(Norm {
                    rows,
                    width,
                    eps,
                    centred,
                })
            }
            Op::Binary(op) if self.dtype == DType::F32 => Call::Elementwise(Elementwise {
                function: Function::Binary(op.function),
                nest: self.nest()?,
            }),
            Op::Binary(op) => Call::IntegerBinary(IntegerBinary {
                function: op.function,
                dtype: self.dtype,
                nest: self.nest()?,
            }),
            Op::Compare(op) => Call::Compare(Compare {
                function: op.function,
                dtype: self.input_type(0),
                nest: self.nest()?,
            }),
            Op::Where(_) => Call::Where(Where {
                element_bytes: self.element_bytes(),
                nest: self.nest()?,
            }),
            Op::Unary(op) if self.dtype == DType::F32 => {
                self.elementwise(Function::Unary(op.function))
            }
            Op::Unary(op) => Call::IntegerUnary(IntegerUnary {
                function: op.function,
                dtype: self.dtype,
                len: self.len(),
            }),
            Op::Gated(op) => self.elementwise(Function::Gated(op.function)),
            Op::Scale(op) => self.elementwise(Function::Scale(op.factor)),
            Op::SoftCap(op) => self.elementwise(Function::SoftCap(op.cap)),
            Op::Rope(op) => Call::Rope(Rope {
                tokens: output[0],
                heads: output[1],
                dim: output[2],
                rotated: self.inputs[1][1],
                layout: op.layout,
            }),
            Op::RopeTable(op) => Call::RopeTable(RopeTable {
                tokens: output[0],
                half: output[1] / 2,
                magnitude: op.magnitude,
                position: self.input_type(0),
            }),
            Op::UpdateAndAttend(op) => Call::CachedAttention(CachedAttentionCall {
                attend: CachedAttention {
                    heads: output[1],
                    kv_heads: self.inputs[1][1],
                    key_dim: self.inputs[0][2],
                    value_dim: output[2],
                    scale: op.scale,
                    softcap: op.softcap,
                },
                cache_id: op.cache_id as usize,
                tokens: output[0],
            }),
            Op::CausalConv(op) => {
                let taps = self.inputs[1][1];
                if taps > MAX_TAPS {
                    return Err(format!("has {taps} taps, can have {MAX_TAPS}"));
                }
                Call::CausalConv(CausalConv {
                    cache_id: op.cache_id as usize,
                    tokens: output[0],
                    channels: output[1],
                    taps,
                    activation: op.activation,
                })
            }
            Op::LinearAttention(op) => Call::LinearAttention(LinearAttention {
                cache_id: op.cache_id as usize,
                tokens: output[0],
                groups: self.inputs[0][1],
                heads: output[1],
                depth: self.inputs[0][2],
                width: output[2],
                scale: op.scale,
                sharing: op.sharing,
            }),
            Op::Permute(op) => {
                let own = strides(&self.inputs[0]);
                let moved: Vec<usize> = op.axes.iter().map(|axis| own[*axis]).collect();
                self.copy(&moved, 0)?
            }
            Op::Expand(_) => self.copy(&broadcast_strides(&self.inputs[0], output), 0)?,
            Op::Slice(op) => {
                let mut steps = strides(&self.inputs[0]);
                let start = op.start.eval(bindings).ok_or("its start has no value")?;
                let first = start * steps[op.axis];
                steps[op.axis] *= op.step;
                self.copy(&steps, first)?
            }
            Op::Reshape(_) => return Err("is not an alias".into()),
            Op::Concat(op) => self.concat(op)?,
            Op::Gather(op) => {
                let data = &self.inputs[0];
                let inner: usize = data[op.axis + 1..].iter().product();
                Call::GatherBlocks(GatherBlocks {
                    outer: data[..op.axis].iter().product(),
                    size: data[op.axis],
                    count: self.inputs[1].iter().product(),
                    block_bytes: inner * self.element_bytes(),
                    index: self.input_type(1),
                })
            }
            Op::GatherElements(op) => self.gather_elements(op)?,
            Op::Index(_) => Call::AdvancedIndex(self.index(&self.inputs[1..])),
            Op::Scatter(op) => self.scatter(op),
            Op::Windows(op) => self.windows(op),
            Op::Conv(op) => self.conv(op),
            Op::Pool(op) => self.pool(op),
            Op::GridSample(op) => self.grid_sample(op),
            Op::Cast(op) => Call::Cast(Cast {
                from: self.input_type(0),
                to: op.to,
                len: self.len(),
            }),
            Op::Reduce(op) => self.reduce(op)?,
            Op::Softmax(op) => Call::Softmax(Softmax {
                lines: AxisView::new(output, op.axis),
                log: op.log,
            }),
            Op::CumSum(op) => Call::CumSum(CumSum {
                lines: AxisView::new(output, op.axis),
                dtype: self.dtype,
            }),
            Op::ArgSort(op) => Call::ArgSort(ArgSort {
                lines: AxisView::new(&self.inputs[0], op.axis),
                count: output[op.axis],
                descending: op.descending,
                dtype: self.input_type(0),
            }),
            Op::Triangle(op) => {
                let [outer @ .., rows, columns] = &output[..] else {
                    return Err("x must have two axes".into());
                };
                Call::Triangle(Triangle {
                    upper: op.upper,
                    diagonal: op.diagonal,
                    matrices: outer.iter().product(),
                    rows: *rows,
                    columns: *columns,
                    element_bytes: self.element_bytes(),
                })
            }
            Op::Range(op) => Call::Generate(Generate::Range {
                start: op.start.value(bindings).ok_or("its start overflows")?,
                step: op.step,
                len: self.len(),
                dtype: self.dtype,
            }),
            Op::Fill(op) => Call::Generate(Generate::Fill {
                bits: match self.dtype {
                    DType::F32 => op.value.to_f32().to_bits().into(),
                    DType::I32 | DType::I64 => op.value.to_i64() as u64,
                    _ => op.value.to_bool().into(),
                },
                element_bytes: self.element_bytes(),
                len: self.len(),
            }),
            Op::Size(op) => Call::Generate(Generate::Fill {
                bits: op.value.value(bindings).ok_or("it overflows")? as u64,
                element_bytes: self.element_bytes(),
                len: 1,
            }),
        })
    }

    fn linear(&self, op: &ops::Linear, layouts: &WeightLayouts) -> Call {
        let (rows, _) = self.rows();
        let (n, k) = (self.inputs[1][0], self.inputs[1][1]);
        if self.input_type(1) == DType::F32 {
            let packed = layouts.has_panels(self.node.inputs[1]);
            #[cfg(target_arch = "x86_64")]
            if packed
                && layouts.tiled()
                && let Some(tiled) = AmxLinear::new([rows, n, k])
            {
                return Call::AmxLinear(tiled, op.activation);
            }
            return Call::MatMul(MatMul {
                m: rows,
                n,
                k,
                batch: vec![(0, 0)],
                rhs_count: 1,
                layout: if packed {
                    RhsLayout::Packed
                } else {
                    RhsLayout::Transposed
                },
                alpha: 1.0,
                activation: op.activation,
            });
        }
        let (m, weight) = (rows, self.input_type(1));
        let activation = op.activation;
        match PackedFormat::of(weight) {
            Some(format) => {
                let precision = layouts.precision(m);
                let linear = QuantisedLinear {
                    m,
                    n,
                    k,
                    format,
                    precision,
                };
                Call::QuantisedLinear(linear, activation)
            }
            None => Call::HalfLinear(HalfLinear { m, n, k, weight }, activation),
        }
    }

    fn experts(&self, op: &ops::Experts, layouts: &WeightLayouts) -> Result<Experts, String> {
        let (rows, _) = self.rows();
        let count = *self.inputs[1].last().expect("a row of weights");
        let product = |operand: usize| {
            let weight = self.input_type(operand);
            let (n, k) = (self.inputs[operand][0] / count, self.inputs[operand][1]);
            Ok(match PackedFormat::of(weight) {
                // An expert's panels hold no rows of another.
                Some(_) if !n.is_multiple_of(PANEL) => {
                    return Err(format!(
                        "has experts of {n} rows, must be a multiple of {PANEL} for {weight} weights"
                    ));
                }
                Some(format) => ExpertProduct::Quantised(QuantisedLinear {
                    m: rows,
                    n,
                    k,
                    format,
                    // An expert gets few of the step's rows.
                    precision: layouts.precision(1),
                }),
                None if weight == DType::F32 => ExpertProduct::F32([rows, n, k]),
                None => ExpertProduct::Half(HalfLinear {
                    m: rows,
                    n,
                    k,
                    weight,
                }),
            })
        };
        Ok(Experts {
            rows,
            count,
            used: op.used,
            function: op.function,
            gate: product(2)?,
            up: product(3)?,
            down: product(4)?,
        })
    }

    fn mat_mul(&self, op: &ops::MatMul) -> Call {
        let (a, b) = (&self.inputs[0], &self.inputs[1]);
        let rank = self.output.len() - 2;
        let (m, n) = (self.output[rank], self.output[rank + 1]);
        let batch = &self.output[..rank];
        let k = a[a.len() - 1];
        let layout = if op.transpose_b {
            RhsLayout::Transposed
        } else {
            RhsLayout::RowMajor
        };
        let rhs_count = b[..b.len() - 2].iter().product();
        let matrices = |own: &[usize]| offsets(batch, &broadcast_strides(own, batch));
        let (left, right) = (matrices(&a[..a.len() - 2]), matrices(&b[..b.len() - 2]));
        // A single right side shared by consecutive rows of the left side makes one product.
        let whole = rhs_count == 1 && left.iter().enumerate().all(|(i, at)| i == *at);
        let (m, pairs) = if whole {
            (m * left.len(), vec![(0, 0)])
        } else {
            (m, left.into_iter().zip(right).collect())
        };
        Call::MatMul(MatMul {
            m,
            n,
            k,
            batch: pairs,
            rhs_count,
            layout,
            alpha: op.alpha,
            activation: None,
        })
    }

    fn attention(&self, op: &ops::Attention) -> Attention {
        // Sizes with heads before tokens.
        let heads_first = |shape: &[usize]| {
            let mut shape = shape.to_vec();
            let rank = shape.len() - 3;
            if op.token_major {
                shape.swap(rank, rank + 1);
            }
            shape
        };
        let (q, k) = (heads_first(&self.inputs[0]), heads_first(&self.inputs[1]));
        let rank = q.len() - 3;
        let keys = k[rank + 1];
        let mask = self.inputs.get(3).map(|shape| {
            let mut scores = q.clone();
            scores[rank + 2] = keys;
            let steps = broadcast_strides(shape, &scores);
            Mask {
                dtype: self.input_type(3),
                planes: offsets(&scores[..rank + 1], &steps[..rank + 1]),
                row: steps[rank + 1],
                column: steps[rank + 2],
            }
        });
        Attention {
            batch: q[..rank].iter().product(),
            heads: q[rank],
            kv_heads: k[rank],
            queries: q[rank + 1],
            keys,
            key_dim: q[rank + 2],
            value_dim: self.output[rank + 2],
            scale: op.scale,
            causal: op.causal,
            softcap: op.softcap,
            mask,
            token_major: op.token_major,
            block: Attention::best_block(keys),
        }
    }

    /// A copy of a view of the first operand.
    fn copy(&self, steps: &[usize], first: usize) -> Result<Call, String> {
        let copy = CopyStrided::new(&self.output, steps, first, self.element_bytes());
        match copy.fits() {
            true => Ok(Call::Copy(vec![copy])),
            false => Err(too_many_axes()),
        }
    }

    fn concat(&self, op: &ops::Concat) -> Result<Call, String> {
        let to = strides(&self.output);
        let mut at = 0;
        let mut parts = Vec::new();
        for shape in &self.inputs {
            let start = [at * to[op.axis], 0];
            let size = self.element_bytes();
            let part = CopyStrided::between(shape, &to, &strides(shape), start, size);
            if !part.fits() {
                return Err(too_many_axes());
            }
            parts.push(part);
            at += shape[op.axis];
        }
        Ok(Call::Copy(parts))
    }

    fn gather_elements(&self, op: &ops::GatherElements) -> Result<Call, String> {
        let mut steps = strides(&self.inputs[0]);
        let stride = std::mem::replace(&mut steps[op.axis], 0);
        let nest = LoopNest::new(&self.output, [&strides(&self.output), &steps]);
        if !nest.fits() {
            return Err(too_many_axes());
        }
        Ok(Call::GatherElements(GatherElements {
            nest,
            size: self.inputs[0][op.axis],
            stride,
            element_bytes: self.element_bytes(),
            index: self.input_type(1),
        }))
    }

    /// Tuples of `indices` into the first axes of the first operand.
    fn index(&self, indices: &[Vec<usize>]) -> AdvancedIndex {
        let data = &self.inputs[0];
        let blocks = strides(&data[..indices.len()]);
        let rank = indices.iter().map(Vec::len).max().unwrap_or(0);
        let mut shape = vec![1; rank];
        for own in indices {
            for (to, size) in shape[rank - own.len()..].iter_mut().zip(own) {
                *to = if *to == 1 { *size } else { *to };
            }
        }
        let block: usize = data[indices.len()..].iter().product();
        AdvancedIndex {
            axes: (0..indices.len())
                .map(|axis| (data[axis], blocks[axis], self.input_type(1 + axis)))
                .collect(),
            strides: indices
                .iter()
                .map(|own| broadcast_strides(own, &shape))
                .collect(),
            shape,
            block_bytes: block * self.element_bytes(),
        }
    }

    fn scatter(&self, op: &ops::Scatter) -> Call {
        let last = self.inputs.len() - 1;
        let index = self.index(&self.inputs[1..last]);
        let rest = &self.output[last - 1..];
        let value_shape: Vec<usize> = index.shape.iter().chain(rest).copied().collect();
        Call::Scatter(Scatter {
            function: op.function,
            dtype: self.dtype,
            data_bytes: self.len() * self.element_bytes(),
            block: rest.iter().product(),
            value_strides: broadcast_strides(&self.inputs[last], &value_shape),
            value_shape,
            index,
        })
    }

    fn windows(&self, op: &ops::Windows) -> Call {
        let x = &self.inputs[0];
        let outer = x.len() - op.axes.len();
        let places = &self.output[op.batch_axes..][..op.axes.len()];
        Call::Windows(Windows {
            batch: x[..op.batch_axes].iter().product(),
            channels: x[op.batch_axes..outer].iter().product(),
            axes: Slide::three(&op.axes, &x[outer..], places),
            padding: op.padding,
        })
    }

    fn conv(&self, op: &ops::Conv) -> Call {
        let (x, output) = (&self.inputs[0], &self.output);
        let shape = ConvShape {
            batch: x[0],
            groups: op.groups,
            inner: x[1] / op.groups,
            outer: output[1] / op.groups,
            axes: Slide::three(&op.axes, &x[2..], &output[2..]),
        };
        Call::Conv(Conv::new(shape, op.activation))
    }

    fn pool(&self, op: &ops::Pool) -> Call {
        let (x, outer) = (&self.inputs[0], self.output.len() - op.axes.len());
        let axes = Slide::three(&op.axes, &x[outer..], &self.output[outer..]);
        let planes = x[..outer].iter().product();
        Call::Pool(Pool::new(op.function, planes, axes))
    }

    fn grid_sample(&self, op: &ops::GridSample) -> Call {
        let (x, output) = (&self.inputs[0], &self.output);
        let rank = x.len() - 2;
        let mut sizes = [1; ops::MAX_SAMPLE_AXES];
        sizes[..rank].copy_from_slice(&x[2..]);
        Call::GridSample(GridSample {
            op: *op,
            batch: x[0],
            channels: x[1],
            sizes,
            rank,
            points: output[2..].iter().product(),
        })
    }

    fn reduce(&self, op: &ops::Reduce) -> Result<Call, String> {
        let x = &self.inputs[0];
        let steps = strides(x);
        let select = |reduced: bool, from: &[usize]| -> Vec<usize> {
            let axes = (0..x.len()).filter(|axis| op.axes.contains(axis) == reduced);
            axes.map(|axis| from[axis]).collect()
        };
        let results = select(false, x);
        let results = LoopNest::new(&results, [&strides(&results), &select(false, &steps)]);
        let group = LoopNest::new(&select(true, x), [&select(true, &steps)]);
        if !results.fits() || !group.fits() {
            return Err(too_many_axes());
        }
        Ok(Call::Reduce(Reduce {
            function: op.function,
            dtype: self.input_type(0),
            results,
            group,
        }))
    }
}

/// The loop over contiguous elements.
fn contiguous<const N: usize>(len: usize) -> LoopNest<N> {
    LoopNest::new(&[len], [&[1]; N])
}

fn too_many_axes() -> String {
    "its axes need more loops than a kernel has".to_owned()
}

/// The offsets of a strided view's elements, in row-major order.
fn offsets(shape: &[usize], steps: &[usize]) -> Vec<usize> {
    let mut list = vec![0];
    for (size, step) in shape.iter().zip(steps) {
        list = list
            .iter()
            .flat_map(|at| (0..*size).map(move |i| at + i * step))
            .collect();
    }
    list
}
