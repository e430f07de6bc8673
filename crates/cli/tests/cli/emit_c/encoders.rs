//! Programs without a cache: encoders of tokens and of images.

use super::*;

#[test]
fn encoders_compute_the_bits_of_the_generic_tier() {
    use kvark::Module;
    use kvark::inference::{ModuleOptions, Value};
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    for path in fixtures("encoder", "gguf") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let target = folder.path(name);
        folder
            .run(&[
                "emit-c",
                path.to_str().unwrap(),
                "-o",
                target.to_str().unwrap(),
            ])
            .ok();
        let program = compile(&target, compiler, &["-O2"]);
        let model = Model::open(&path, None).unwrap();
        let options = ModuleOptions {
            compile: CompileOptions {
                threads: Some(1),
                ..CompileOptions::default()
            },
            ..ModuleOptions::default()
        };
        let cpu = Cpu::with_isa(Isa::GENERIC);
        let mut module = Module::from_artifact(model.artifact(), &cpu, &options).unwrap();
        for count in [1, 5, 17] {
            let ids: Vec<i32> = (0..count).map(|i| (i * 5 + 2) % 60).collect();
            let inputs = [
                Value::i32([ids.len()], ids.clone()),
                Value::i32([ids.len()], (0..count).collect()),
                Value::i32([ids.len()], vec![0; ids.len()]),
            ];
            let expect = module.execute("forward", &inputs).unwrap();
            let expect: Vec<u32> = expect[0]
                .as_f32()
                .unwrap()
                .iter()
                .map(|x| x.to_bits())
                .collect();
            let ids: Vec<String> = ids.iter().map(i32::to_string).collect();
            let output = Command::new(&program)
                .current_dir(&target)
                .stdin(script(&folder, &format!("e {count} {}\n", ids.join(" "))))
                .output()
                .unwrap();
            let words = output.stdout.as_chunks::<4>().0.iter();
            let found: Vec<u32> = words.map(|four| u32::from_le_bytes(*four)).collect();
            assert_eq!(found[0], 0, "{name}");
            assert_eq!(found[1..], expect, "{name}, {count} tokens");
        }
    }
}

/// The f32 numbers of a tensor in a golden file.
fn golden(tensor: &serde_json::Value) -> Vec<f32> {
    let data = tensor["data"].as_array().unwrap().iter();
    data.map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn an_encoder_of_images_computes_the_bits_of_the_generic_tier() {
    use kvark::Module;
    use kvark::inference::{ModuleOptions, Value};
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let pt2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/pt2");
    let path = pt2.join("siglip.pt2");
    let target = folder.path("siglip");
    let arguments = ["emit-c", path.to_str().unwrap(), "-o"];
    folder
        .run(&[&arguments[..], &[target.to_str().unwrap()]].concat())
        .ok();
    let header = std::fs::read_to_string(target.join("model.h")).unwrap();
    assert!(!header.contains("A_KV_CACHE"), "nothing is kept");
    let text = std::fs::read_to_string(pt2.join("siglip.json")).unwrap();
    let cases: serde_json::Value = serde_json::from_str(&text).unwrap();
    let options = ModuleOptions {
        compile: CompileOptions {
            threads: Some(1),
            ..CompileOptions::default()
        },
        ..ModuleOptions::default()
    };
    let model = Model::open(&path, None).unwrap();
    let cpu = Cpu::with_isa(Isa::GENERIC);
    let mut module = Module::from_artifact(model.artifact(), &cpu, &options).unwrap();
    for flags in [
        &["-O2"][..],
        &["-O1", "-DMODEL_DEBUG", "-fsanitize=address,undefined"],
    ] {
        let fixed = [
            "-std=c11",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Werror",
        ];
        let output = Command::new(compiler)
            .current_dir(&target)
            .args(flags)
            .args(fixed)
            .args(["main.c", "model.c", "kernels.c", "-lm", "-o", "program"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        for case in cases["cases"].as_array().unwrap() {
            let pixels = golden(&case["inputs"][0]);
            let bytes: Vec<u8> = pixels.iter().flat_map(|x| x.to_le_bytes()).collect();
            let output = Command::new(target.join("program"))
                .current_dir(&target)
                // The state is one allocation that lives until the program ends.
                .env("ASAN_OPTIONS", "detect_leaks=0")
                .stdin(std::fs::File::open(folder.file("pixels.f32", bytes)).unwrap())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            let words = output.stdout.as_chunks::<4>().0.iter();
            let found: Vec<f32> = words.map(|four| f32::from_le_bytes(*four)).collect();
            let inputs = [Value::f32([1, 3, 12, 12], pixels)];
            let expect = module.execute("forward", &inputs).unwrap();
            let bits = |list: &[f32]| list.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(expect[0].as_f32().unwrap()));
            let truth = golden(&case["outputs"][0]);
            assert_eq!(found.len(), truth.len());
            let far = found.iter().zip(&truth).map(|(a, b)| (a - b).abs());
            assert!(far.fold(0.0, f32::max) < 1e-4, "PyTorch's outputs");
        }
    }
    for flag in ["--help", "-h"] {
        let output = Command::new(target.join("program")).arg(flag).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("\n  model [-w weights.bin] <"),
            "{said}"
        );
    }
    let output = Command::new(target.join("program"))
        .current_dir(&target)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "error: standard input: is shorter than the inputs\n");
    assert_eq!(output.status.code(), Some(1));
}
