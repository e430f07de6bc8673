use super::*;

fn unique(axis: Option<usize>, sorted: bool, x: &Value) -> Vec<Value> {
    let op = DataSized::Unique(Unique { axis, sorted });
    let found = op.evaluate(&[x]).unwrap();
    for (value, counted) in found.iter().zip(op.counted_axes()) {
        assert!(counted.is_none_or(|axis| value.shape[axis] == found[1].shape[0]));
    }
    found
}

#[test]
fn indices_of_nonzero_elements() {
    let of = |x: Value| DataSized::NonZero.evaluate(&[&x]).unwrap().remove(0);
    let x = Value::f32([2, 3], vec![0.0, -1.0, 0.5, f32::NAN, 0.0, -0.0]);
    assert_eq!(of(x), Value::i64([2, 3], vec![0, 0, 1, 1, 2, 0]));
    assert_eq!(of(Value::i32([3, 0], vec![])), Value::i64([2, 0], vec![]));
    assert_eq!(of(Value::bool([], vec![true])), Value::i64([0, 1], vec![]));
    assert_eq!(of(Value::bool([], vec![false])), Value::i64([0, 0], vec![]));
}

#[test]
fn different_elements() {
    let x = Value::i64([5], vec![2, 1, 1, 3, 2]);
    let numbers = |list: &[i64]| Value::i64([list.len()], list.to_vec());
    let expect = [&[1, 2, 3][..], &[1, 0, 3], &[1, 0, 0, 2, 1], &[2, 2, 1]];
    assert_eq!(unique(None, true, &x), expect.map(numbers));
    let expect = [&[2, 1, 3][..], &[0, 1, 3], &[0, 1, 1, 2, 0], &[2, 2, 1]];
    assert_eq!(unique(None, false, &x), expect.map(numbers));
    let found = unique(None, true, &Value::f32([3], vec![f32::NAN, 1.0, f32::NAN]));
    assert_eq!(found[1], numbers(&[1, 0]));
}

#[test]
fn different_slices() {
    let x = Value::f32([2, 3], vec![1.0, 0.0, 1.0, 5.0, 4.0, 5.0]);
    let found = unique(Some(1), true, &x);
    assert_eq!(found[0], Value::f32([2, 2], vec![0.0, 1.0, 4.0, 5.0]));
    assert_eq!(found[2], Value::i64([3], vec![1, 0, 1]));
    let found = unique(Some(0), true, &Value::f32([0, 3], vec![]));
    assert_eq!(found[0], Value::f32([0, 3], vec![]));
    // Slices without elements are equal.
    let found = unique(Some(0), true, &Value::f32([3, 0], vec![]));
    assert_eq!(found[3], Value::i64([1], vec![3]));
}

#[test]
fn boxes_that_overlap_better_ones_are_left_out() {
    let boxes = [
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 0.1, 1.0, 1.1],
        [1.0, 1.0, 0.0, 0.0],
        [5.0, 5.0, 5.0, 9.0],
    ];
    let boxes = Value::f32([1, 4, 4], boxes.concat());
    let scores = Value::f32([1, 2, 4], vec![0.9, 0.8, 0.9, 0.1, 0.2, 0.3, 0.1, f32::NAN]);
    let taken = |most: usize, overlap: f32, score: Option<f32>| {
        let op = NonMaxSuppression {
            most,
            overlap,
            score,
            centred: false,
        };
        op.evaluate(&boxes, &scores).unwrap()
    };
    let all = vec![0, 0, 0, 0, 0, 3, 0, 1, 1];
    assert_eq!(taken(9, 0.5, None), Value::i64([3, 3], all));
    assert_eq!(taken(0, 0.5, None), Value::i64([0, 3], vec![]));
    assert_eq!(taken(9, 0.5, Some(0.85)), Value::i64([1, 3], vec![0; 3]));
    assert_eq!(taken(9, 1.0, Some(0.0)).shape, [7, 3]);
    assert_eq!(taken(1, 1.0, Some(0.0)).shape, [2, 3]);
}
