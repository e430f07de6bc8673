use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

const PLAIN: EncodeOptions = EncodeOptions {
    bos: false,
    special: false,
    eos: false,
};
const SPECIAL: EncodeOptions = EncodeOptions {
    bos: false,
    special: true,
    eos: false,
};

fn push(vocab: &mut Vocab, text: &str, kind: TokenKind) -> u32 {
    vocab.kinds.resize(vocab.tokens.len(), TokenKind::Normal);
    vocab.scores.resize(vocab.tokens.len(), 0.0);
    vocab.tokens.push(text);
    vocab.kinds.push(kind);
    vocab.scores.push(-1000.0);
    vocab.tokens.len() as u32 - 1
}

fn bpe() -> Vocab {
    let mut vocab =
        crate::encode::bpe::tests::vocab(&["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ"]);
    vocab.bos = Some(push(&mut vocab, "<|begin|>", TokenKind::Control));
    vocab.eos = Some(push(&mut vocab, "<|im_end|>", TokenKind::Control));
    push(&mut vocab, "<|eot_id|>", TokenKind::Control);
    push(&mut vocab, "<tool>", TokenKind::UserDefined);
    vocab
}

fn spm() -> Vocab {
    let mut vocab =
        crate::encode::sentencepiece::tests::vocab(&["▁▁", "▁a", "ab", "▁", "a", "b", "\n"], true);
    push(&mut vocab, "<tool>", TokenKind::UserDefined);
    vocab
}

fn wordpiece() -> Vocab {
    crate::encode::wordpiece::tests::vocab(&["▁a", "▁b", "b", "▁!", "▁我"])
}

#[test]
fn bos_eos_and_special_tokens_are_asked_for() {
    let tokenizer = Tokenizer::new(bpe()).unwrap();
    let (bos, eos) = (tokenizer.bos().unwrap(), tokenizer.eos().unwrap());
    let hello = tokenizer.encode("hello", PLAIN);
    assert_eq!(hello.len(), 1);
    let all = EncodeOptions {
        bos: true,
        special: true,
        eos: true,
    };
    assert_eq!(tokenizer.encode("hello", all), [bos, hello[0], eos]);
    assert_eq!(tokenizer.encode("<|im_end|>", SPECIAL), [eos]);
    assert!(!tokenizer.encode("<|im_end|>", PLAIN).contains(&eos));
    assert_eq!(
        tokenizer.encode("<tool>", PLAIN),
        [tokenizer.special_token("<tool>").unwrap()]
    );
}

#[test]
fn generation_ends_at_eos_and_its_kin() {
    let mut vocab = bpe();
    vocab.extra_eos = vec![7];
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let ends: Vec<_> = (0..tokenizer.vocab_size() as u32)
        .filter(|&id| tokenizer.is_eog(id))
        .collect();
    let (eos, eot) = (
        tokenizer.eos().unwrap(),
        tokenizer.special_token("<|eot_id|>").unwrap(),
    );
    assert_eq!(ends, [7, eos, eot]);
}

#[test]
fn habits_of_the_algorithms_yield_to_the_file() {
    let adds = |vocab: Vocab| {
        let tokenizer = Tokenizer::new(vocab).unwrap();
        (tokenizer.adds_bos(), tokenizer.adds_eos())
    };
    assert_eq!(adds(bpe()), (false, false));
    assert_eq!(
        adds(Vocab {
            pre_tokenizer: "llama-bpe".into(),
            ..bpe()
        }),
        (true, false)
    );
    assert_eq!(adds(spm()), (true, false));
    assert_eq!(adds(wordpiece()), (true, true));
    assert_eq!(
        adds(Vocab {
            add_bos: Some(false),
            add_eos: Some(true),
            ..spm()
        }),
        (false, true)
    );
    assert_eq!(adds(Vocab { bos: None, ..spm() }), (false, false));
}

#[test]
fn decoding_hides_control_tokens_unless_asked() {
    let tokenizer = Tokenizer::new(bpe()).unwrap();
    let ids = tokenizer.encode("<|begin|>hello<tool>", SPECIAL);
    assert_eq!(tokenizer.decode(&ids, false), "hello<tool>");
    assert_eq!(tokenizer.decode(&ids, true), "<|begin|>hello<tool>");
    assert_eq!(tokenizer.decode(&[u32::MAX], true), "");
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("é", PLAIN)[..1], true),
        "\u{FFFD}"
    );
}

#[test]
fn the_space_that_sentencepiece_adds_is_taken_away() {
    let tokenizer = Tokenizer::new(spm()).unwrap();
    for text in ["ab", " ab", "a  b\n", "", " ", "<s>ab<tool> b</s>"] {
        let ids = tokenizer.encode(text, SPECIAL);
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
    let a = tokenizer.encode("a", PLAIN)[0];
    assert_eq!(tokenizer.token_bytes(a), Some(b" a".as_slice()));
    let bare = Tokenizer::new(Vocab {
        add_space_prefix: Some(false),
        ..spm()
    })
    .unwrap();
    assert_eq!(bare.decode(&bare.encode(" a", PLAIN), false), " a");
}

#[test]
fn wordpiece_decodes_to_spaced_words() {
    let tokenizer = Tokenizer::new(wordpiece()).unwrap();
    let ids = tokenizer.encode(
        "A b!",
        EncodeOptions {
            bos: true,
            eos: true,
            special: false,
        },
    );
    assert_eq!(tokenizer.decode(&ids, false), "a b !");
    assert_eq!((ids[0], ids[ids.len() - 1]), (1, 2));
}

#[test]
fn a_vocabulary_that_contradicts_itself_is_refused() {
    let wrong = Vocab {
        eos: Some(1 << 20),
        ..spm()
    };
    assert!(matches!(
        Tokenizer::new(wrong),
        Err(TextError::IdOutOfRange { what: "eos", .. })
    ));
    let unknown = Vocab {
        pre_tokenizer: "mystery".into(),
        ..bpe()
    };
    assert_eq!(
        Tokenizer::new(unknown).unwrap_err(),
        TextError::UnknownPreTokenizer("mystery".into())
    );
    assert!(
        Tokenizer::new(Vocab::default())
            .unwrap()
            .encode("any", PLAIN)
            .is_empty()
    );
}

static BYTE_LEVEL: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let names = [
        "gpt-2",
        "smollm",
        "llama-bpe",
        "qwen2",
        "deepseek-llm",
        "deepseek-coder",
        "falcon",
        "default",
    ];
    let build = |pre: &&str| {
        Tokenizer::new(Vocab {
            pre_tokenizer: (*pre).into(),
            ..bpe()
        })
        .unwrap()
    };
    names.iter().map(build).collect()
});
static EACH: LazyLock<[Tokenizer; 3]> =
    LazyLock::new(|| [bpe(), spm(), wordpiece()].map(|vocab| Tokenizer::new(vocab).unwrap()));

proptest! {
    #[test]
    fn byte_level_text_comes_back(text in any::<String>(), spaced in "[hello \n\t<tool>12é我'’]{0,40}") {
        for tokenizer in BYTE_LEVEL.iter() {
            for text in [&text, &spaced] {
                let ids = tokenizer.encode(text, PLAIN);
                prop_assert_eq!(&tokenizer.decode(&ids, true), text);
            }
        }
    }

    #[test]
    fn sentencepiece_text_comes_back(text in "[ab \n<tool>é我]{0,40}") {
        let tokenizer = &EACH[1];
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, SPECIAL), true), text);
    }

    #[test]
    fn no_text_and_no_ids_panic(text in any::<String>(), ids in proptest::collection::vec(0u32..400, 0..20)) {
        for tokenizer in EACH.iter() {
            for id in tokenizer.encode(&text, SPECIAL) {
                prop_assert!((id as usize) < tokenizer.vocab_size());
            }
            tokenizer.decode(&ids, false);
        }
    }

    #[test]
    fn no_vocabulary_panics(vocab in hostile_vocab(), text in "[ab▁ <>0x4é]{0,20}") {
        if let Ok(tokenizer) = Tokenizer::new(vocab) {
            let ids = tokenizer.encode(&text, EncodeOptions { bos: true, special: true, eos: true });
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids, true);
        }
    }
}

/// Vocabularies as no sane file has them.
fn hostile_vocab() -> impl Strategy<Value = Vocab> {
    let model = prop_oneof![
        Just(VocabModel::Bpe),
        Just(VocabModel::SentencePiece),
        Just(VocabModel::WordPiece)
    ];
    let tokens =
        proptest::collection::vec(prop_oneof!["[ab▁Ġ]{0,3}", Just("<0x41>".to_owned())], 0..8);
    let merges = proptest::collection::vec("[abĠ ]{0,4}", 0..3);
    let id = || proptest::option::of(0u32..9);
    (model, tokens, merges, id(), id(), any::<bool>()).prop_flat_map(
        |(model, tokens, merges, bos, unk, prefix)| {
            let count = tokens.len();
            let scores =
                proptest::collection::vec(prop_oneof![Just(f32::NAN), any::<f32>()], count);
            let kinds = proptest::collection::vec(
                (1i64..7).prop_map(|code| TokenKind::from_code(code).unwrap()),
                count,
            );
            (scores, kinds).prop_map(move |(scores, kinds)| Vocab {
                model,
                tokens: tokens.iter().collect(),
                merges: merges.iter().collect(),
                scores,
                kinds,
                bos,
                unk,
                add_space_prefix: Some(prefix),
                ..Vocab::default()
            })
        },
    )
}
