//! Real numbers quantised to eight bits by the range that they have at run time.

use graph::TensorId;
use graph::ops::{
    BinaryFunction as B, CompareFunction as C, Linear, Reduce, ReduceFunction as R, Scalar,
    UnaryFunction as U,
};

use base::DType;

use super::LoweringBuilder;

impl LoweringBuilder {
    /// 8-bit integers without sign, scale and zero point for the range of the elements, all in f32.
    pub(crate) fn dynamically_quantised(&mut self, x: TensorId) -> Result<[TensorId; 3], String> {
        let lower = self;
        let axes: Vec<usize> = (0..lower.rank(x)).collect();
        let bound = |lower: &mut LoweringBuilder, function, limit| {
            let extreme = match axes.is_empty() {
                true => x,
                false => {
                    let reduce = Reduce {
                        function,
                        axes: axes.clone(),
                        keep: false,
                    };
                    lower.emit(reduce, &[x])?
                }
            };
            lower.with_number(limit, extreme, 0.0)
        };
        let low = bound(&mut *lower, R::Min, B::Min)?;
        let high = bound(&mut *lower, R::Max, B::Max)?;
        let span = lower.binary(B::Sub, high, low)?;
        let scale = lower.with_number(B::Div, span, 255.0)?;
        // Any scale fits zeros.
        let (zero, one) = (
            lower.scalar(Scalar::F32(0.0), DType::F32)?,
            lower.scalar(Scalar::F32(1.0), DType::F32)?,
        );
        let empty = lower.compare(C::Eq, span, zero)?;
        let scale = lower.choose(empty, one, scale)?;
        let limited = |lower: &mut LoweringBuilder, x| {
            let x = lower.with_number(B::Max, x, 0.0)?;
            lower.with_number(B::Min, x, 255.0)
        };
        let place = lower.binary(B::Div, low, scale)?;
        let place = lower.unary(U::Neg, place)?;
        let place = lower.unary(U::Round, place)?;
        let place = limited(&mut *lower, place)?;
        let scaled = lower.binary(B::Div, x, scale)?;
        let whole = lower.unary(U::Round, scaled)?;
        let moved = lower.binary(B::Add, whole, place)?;
        let result = limited(&mut *lower, moved)?;
        Ok([result, scale, place])
    }

    /// `x` quantised, times the rows of `weights`, which are integers in f32 that have this scale, or one for each row.
    pub(crate) fn quantised_product(
        &mut self,
        x: TensorId,
        weights: TensorId,
        scale: TensorId,
    ) -> Result<TensorId, String> {
        let [quants, own, zero] = self.dynamically_quantised(x)?;
        let centred = self.binary(B::Sub, quants, zero)?;
        let product = self.emit(Linear::default(), &[centred, weights])?;
        let scale = self.binary(B::Mul, own, scale)?;
        self.binary(B::Mul, product, scale)
    }
}
