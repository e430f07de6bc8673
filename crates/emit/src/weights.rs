//! The constants of a program and their places in `weights.bin`.

use crate::EmitError;
use crate::error::EmitErrorKind;
use crate::names::Names;
use base::{Bytes, DType};
use cpu::{PackedWeightKind, PlainPanel, plain_panels};
use graph::{Graph, TensorId};
use std::collections::HashMap;
use std::io::{self, Write};

/// Every constant starts at a multiple of this.
pub(crate) const ALIGNMENT: usize = 64;
/// Bytes of the header: the magic, the size of the file, zeros.
pub(crate) const HEADER: usize = 64;
/// The first bytes of `weights.bin`.
pub(crate) const MAGIC: &[u8; 8] = b"kvarkC01";
/// Columns of a panel of f32 weights.
pub(crate) const F32_PANEL: usize = 32;

/// How a constant is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// As the graph has it.
    Raw,
    /// A quantised weight `[n, k]` in panels.
    QuantisedPanels { n: usize, k: usize },
    /// Of a table that is in panels: the bytes of every block that its scales and mins are read from.
    Scales { start: usize, bytes: usize },
    /// An f32 weight `[n, k]` in panels.
    F32Panels { n: usize, k: usize },
    /// The cosines and sines of positions below `positions`, from a constant of frequencies.
    RopeTable { positions: usize, magnitude: f32 },
}

/// A constant in `weights.bin`.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) id: TensorId,
    pub(crate) form: Form,
    /// Its name in C.
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// Its type and shape in words.
    pub(crate) shape: String,
}

/// All constants of a program, in the order of the file.
#[derive(Default)]
pub(crate) struct Weights {
    list: Vec<Weight>,
    places: HashMap<(TensorId, FormKind), usize>,
    end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FormKind {
    Raw,
    Packed,
    Scales,
    Table,
}

impl Form {
    fn kind(&self) -> FormKind {
        match self {
            Form::Raw => FormKind::Raw,
            Form::QuantisedPanels { .. } | Form::F32Panels { .. } => FormKind::Packed,
            Form::Scales { .. } => FormKind::Scales,
            Form::RopeTable { .. } => FormKind::Table,
        }
    }

    fn bytes(&self, dtype: DType, constant: &Bytes) -> Option<usize> {
        Some(match *self {
            Form::Raw => constant.len(),
            Form::QuantisedPanels { n, k } => {
                n.div_ceil(PackedWeightKind::PANEL) * panel_bytes(dtype, k)?
            }
            Form::Scales { bytes, .. } => constant.len() / dtype.block_bytes() * bytes,
            Form::F32Panels { n, k } => {
                let panels = n.div_ceil(F32_PANEL).checked_mul(F32_PANEL)?;
                panels.checked_mul(k)?.checked_mul(size_of::<f32>())?
            }
            Form::RopeTable { positions, .. } => {
                constant.len().checked_mul(2)?.checked_mul(positions)?
            }
        })
    }
}

impl Weights {
    /// The name of a constant in this form, which is placed on first use.
    pub(crate) fn place(
        &mut self,
        graph: &Graph,
        names: &mut Names,
        id: TensorId,
        form: Form,
    ) -> Option<String> {
        if let Some(known) = self.places.get(&(id, form.kind())) {
            return Some(self.list[*known].name.clone());
        }
        let tensor = graph.tensor(id);
        let constant = tensor.constant()?;
        let prefix = match form.kind() {
            FormKind::Raw => "W_",
            FormKind::Packed => "P_",
            FormKind::Scales => "S_",
            FormKind::Table => "T_",
        };
        let name = names.get(prefix, id, &tensor.name);
        let offset = self.end.max(HEADER).next_multiple_of(ALIGNMENT);
        let bytes = form.bytes(tensor.ty.dtype, constant)?;
        self.end = offset.checked_add(bytes)?;
        let shape = match form {
            Form::RopeTable { positions, .. } => {
                format!(
                    "f32[{positions}, {}]",
                    constant.len() / size_of::<f32>() * 2
                )
            }
            _ => {
                let dims = tensor.ty.dims(&Default::default()).unwrap_or_default();
                let layout = match form {
                    Form::QuantisedPanels { .. } => " in panels",
                    Form::F32Panels { .. } => " in panels",
                    Form::Scales { .. } => ", scales of the blocks",
                    _ => "",
                };
                format!("{}{dims:?}{layout}", tensor.ty.dtype)
            }
        };
        self.places.insert((id, form.kind()), self.list.len());
        self.list.push(Weight {
            id,
            form,
            name: name.clone(),
            offset,
            bytes,
            shape,
        });
        Some(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Weight> {
        self.list.iter()
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> usize {
        self.end.max(HEADER).next_multiple_of(ALIGNMENT)
    }

    /// Writes the file. `progress` receives the bytes written and returns false to cancel.
    pub(crate) fn write(
        &self,
        graph: &Graph,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(), WriteError> {
        let total = self.bytes();
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&(total as u64).to_le_bytes());
        out.write_all(&header)?;
        let mut at = HEADER;
        for weight in &self.list {
            out.write_all(&vec![0; weight.offset - at])?;
            if !progress(at, total) {
                return Err(WriteError::Interrupted);
            }
            write_weight(graph, weight, out)?;
            at = weight.offset + weight.bytes;
        }
        out.write_all(&vec![0; total - at])?;
        progress(total, total);
        Ok(())
    }
}

/// Why the file was not written.
pub(crate) enum WriteError {
    Io(io::Error),
    Interrupted,
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError::Io(error)
    }
}

impl WriteError {
    pub(crate) fn at(self, path: &std::path::Path) -> EmitError {
        match self {
            WriteError::Io(error) => EmitErrorKind::Io {
                path: path.to_owned(),
                error,
            },
            WriteError::Interrupted => EmitErrorKind::Interrupted,
        }
        .into()
    }
}

fn write_weight(graph: &Graph, weight: &Weight, out: &mut dyn Write) -> io::Result<()> {
    let tensor = graph.tensor(weight.id);
    let bytes = tensor.constant().expect("only constants are placed");
    match weight.form {
        Form::Raw => out.write_all(bytes),
        Form::QuantisedPanels { n, k } => {
            let dtype = tensor.ty.dtype;
            let mut result = Ok(());
            let mut panel = Vec::new();
            let mut write = |panel: &[u8]| {
                if result.is_ok() {
                    result = out.write_all(panel);
                }
            };
            let kind = PackedWeightKind::of(dtype).expect("only quantised weights are panels");
            plain_panels(dtype, bytes, n, k, |plain| {
                write_panel(plain, kind, &mut panel);
                write(&panel);
            });
            result
        }
        Form::Scales { start, bytes: len } => {
            let blocks = bytes.chunks_exact(tensor.ty.dtype.block_bytes());
            let mut own = Vec::with_capacity(bytes.len() / tensor.ty.dtype.block_bytes() * len);
            blocks.for_each(|block| own.extend(&block[start..start + len]));
            out.write_all(&own)
        }
        Form::F32Panels { n, k } => {
            let rows: Vec<f32> = floats(bytes);
            let mut panel = vec![0.0f32; k * F32_PANEL];
            for first in (0..n).step_by(F32_PANEL) {
                panel.fill(0.0);
                for c in 0..F32_PANEL.min(n - first) {
                    for i in 0..k {
                        panel[i * F32_PANEL + c] = rows[(first + c) * k + i];
                    }
                }
                write_floats(out, &panel)?;
            }
            Ok(())
        }
        Form::RopeTable {
            positions,
            magnitude,
        } => {
            let frequencies = floats(bytes);
            for position in 0..positions {
                let angles = frequencies.iter().map(|f| position as f32 * f);
                let cosines = angles.clone().map(|angle| angle.cos() * magnitude);
                let sines = angles.map(|angle| angle.sin() * magnitude);
                let row: Vec<f32> = cosines.chain(sines).collect();
                write_floats(out, &row)?;
            }
            Ok(())
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|four| f32::from_le_bytes(*four)).collect()
}

fn write_floats(out: &mut dyn Write, numbers: &[f32]) -> io::Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    out.write_all(&bytes)
}

/// Inputs of a block.
const BLOCK: usize = 32;
/// Rows of a panel.
const PANEL: usize = PackedWeightKind::PANEL;

/// Bytes of a panel in `weights.bin`.
fn panel_bytes(dtype: DType, k: usize) -> Option<usize> {
    let units = PANEL * size_of::<f32>();
    Some(k / BLOCK * PanelCodes::of(dtype)?.stride + units)
}

/// Where the codes of a weight in panels are.
pub(crate) struct PanelCodes {
    /// Bytes of a block of 32 inputs of a panel.
    pub(crate) stride: usize,
    /// Bits above the fourth, which are stored behind all low ones.
    pub(crate) upper: usize,
    pub(crate) is_byte: bool,
    /// Whether rows r and r + 8 are neighbours.
    pub(crate) pairs: bool,
}

impl PanelCodes {
    pub(crate) fn of(dtype: DType) -> Option<PanelCodes> {
        let half = BLOCK / 2 * PANEL;
        Some(match PackedWeightKind::of(dtype)? {
            PackedWeightKind::RowScaled { bits, group, .. } => {
                let upper = bits.saturating_sub(4) as usize;
                PanelCodes {
                    stride: half + BLOCK / 8 * upper * PANEL + BLOCK / group * 4 * PANEL,
                    upper,
                    is_byte: false,
                    pairs: true,
                }
            }
            PackedWeightKind::ByteQuants { is_table } => PanelCodes {
                stride: if is_table { half } else { 2 * half } + 2 * PANEL,
                upper: 0,
                is_byte: !is_table,
                pairs: false,
            },
        })
    }
}

/// Writes a panel as the kernels read it: for each block the quants and the factors of its groups, then the scales of the rows.
/// The low four bits of inputs i and i + 16 share a byte.
fn write_panel(panel: &PlainPanel, kind: PackedWeightKind, out: &mut Vec<u8>) {
    out.clear();
    match kind {
        PackedWeightKind::RowScaled { bits, group, .. } => {
            // Rows r and r + 8 are the bytes of one 16-bit lane. A group has sixteen scales, then sixteen mins.
            let row = |lane: usize| lane / 2 + lane % 2 * 8;
            let groups = panel.factors.chunks(BLOCK / group);
            for (quants, factors) in panel.quants.chunks(BLOCK).zip(groups) {
                write_quants(quants, true, row, out);
                write_upper(quants, bits.saturating_sub(4) as usize, row, out);
                for factor in factors {
                    for side in 0..2 {
                        out.extend(factor.iter().flat_map(|pair| pair[side].to_le_bytes()));
                    }
                }
            }
        }
        PackedWeightKind::ByteQuants { is_table } => {
            for (quants, factors) in panel.quants.chunks(BLOCK).zip(&panel.factors) {
                write_quants(quants, is_table, |lane| lane, out);
                out.extend(factors.iter().flat_map(|pair| pair[0].to_le_bytes()));
            }
        }
    }
    out.extend(panel.units.iter().flat_map(|unit| unit.to_le_bytes()));
}

/// Writes the quants of a block, input by input, as bytes or as halves of bytes; `row` is the row of a lane.
fn write_quants(
    quants: &[[u8; PANEL]],
    halves: bool,
    row: impl Fn(usize) -> usize,
    out: &mut Vec<u8>,
) {
    if !halves {
        let input = |q: &[u8; PANEL]| std::array::from_fn::<u8, PANEL, _>(|lane| q[row(lane)]);
        out.extend(quants.iter().flat_map(input));
        return;
    }
    let (low, high) = quants.split_at(BLOCK / 2);
    for (low, high) in low.iter().zip(high) {
        out.extend((0..PANEL).map(|lane| low[row(lane)] & 15 | high[row(lane)] << 4));
    }
}

/// Writes the bits above the fourth of a block's quants: a byte has those of inputs that are four or eight apart.
fn write_upper(
    quants: &[[u8; PANEL]],
    upper: usize,
    row: impl Fn(usize) -> usize,
    out: &mut Vec<u8>,
) {
    let apart = 4 * upper;
    for first in 0..apart {
        out.extend((0..PANEL).map(|lane| {
            let inputs = (first..BLOCK).step_by(apart);
            let bits = inputs.map(|input| quants[input][row(lane)] >> 4);
            bits.enumerate()
                .fold(0, |byte, (i, bits)| byte | bits << (i * upper))
        }));
    }
}
