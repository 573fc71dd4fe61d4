//! How text becomes numbers of tokens.

use compress_compiler::{
    error::{Error, Result},
    words::option::TOKENIZER,
};
use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::Once,
};
use tokenizers::{ModelWrapper, PostProcessor, Tokenizer, TruncationParams};

/// The vocabulary of a model whose tokens are bytes.
const BYTES: i64 = 256;

/// Names that the token has which ends a document, in files that don't say which it is.
const ENDS: [&str; 6] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>"];
/// Names that the token has which fills sequences up.
const PADS: [&str; 4] = ["[PAD]", "<pad>", "<|pad|>", "<|padding|>"];

/// Makes numbers of tokens of text.
pub(super) enum Tokens {
    /// Each byte is a token.
    Bytes,
    /// A tokenizer of Hugging Face's.
    File(Box<FileTokenizer>),
}

/// A tokenizer in a file.
pub(super) struct FileTokenizer {
    tokenizer: Tokenizer,
    path: PathBuf,
    /// The token that fills up, if the file names it.
    pad: Option<u32>,
}

thread_local! {
    /// Whether a panic of this thread is an error that is told otherwise.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Leaves a panic unsaid that [`sound`] makes an error of.
fn say_no_expected_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                before(info);
            }
        }));
    });
}

/// What the library makes of a tokenizer: its code panics on some files that are no sound tokenizers.
fn sound<T>(path: &Path, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    say_no_expected_panic();
    EXPECTED.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(false);
    let why = match done {
        Ok(Ok(made)) => return Ok(made),
        Ok(Err(e)) => e.to_string(),
        Err(_) => "the tokenizers library failed in it".into(),
    };
    Err(Error::data(format!("it is not a sound tokenizer: {why}"))
        .in_file(path)
        .help("give the tokenizer.json of Hugging Face's tokenizers"))
}

impl Tokens {
    /// The tokenizer in the file at `path`; without one bytes, for a model of a vocabulary of so many. Texts are cut off behind `most`
    /// tokens, with the special ones that begin and end a sentence, if there is a limit.
    ///
    /// # Errors
    /// Data when there is none, or it can't be read.
    pub(super) fn open(path: Option<&Path>, vocabulary: Option<i64>, most: Option<usize>) -> Result<Self> {
        let Some(path) = path else {
            return match vocabulary {
                Some(BYTES) => Ok(Self::Bytes),
                _ => Err(Error::data("text needs the tokenizer that the model was trained with")
                    .help(format!("put its tokenizer.json beside the model, or name it with {TOKENIZER}"))),
            };
        };
        let bytes = std::fs::read(path).map_err(|e| Error::file(format!("cannot be read: {e}")).in_file(path))?;
        let (tokenizer, pad) = sound(path, || {
            let mut tokenizer = Tokenizer::from_bytes(&bytes)?;
            // The same text has the same tokens each time.
            if let ModelWrapper::BPE(bpe) = tokenizer.get_model()
                && bpe.dropout.is_some()
            {
                let mut bpe = bpe.clone();
                bpe.dropout = None;
                tokenizer.with_model(bpe);
            }
            // How long samples are is for this program to say.
            let pad = tokenizer.get_padding().map(|padding| padding.pad_id);
            tokenizer.with_padding(None);
            let special = tokenizer.get_post_processor().map_or(0, |p| p.added_tokens(false));
            let limit = most.map(|most| TruncationParams { max_length: most.max(special + 1), ..Default::default() });
            tokenizer.with_truncation(limit)?;
            Ok((tokenizer, pad))
        })?;
        Ok(Self::File(Box::new(FileTokenizer { tokenizer, path: path.to_owned(), pad })))
    }

    /// The numbers of the tokens of `text`. `special` adds those that begin and end a sentence.
    ///
    /// # Errors
    /// Data when the tokenizer refuses it.
    pub(super) fn of(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::File(f) => sound(&f.path, || Ok(f.tokenizer.encode_fast(text, special)?.get_ids().to_vec())),
        }
    }

    fn first_of(&self, names: &[&str]) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::File(f) => names.iter().find_map(|name| f.tokenizer.token_to_id(name)),
        }
    }

    /// The token behind a document; bytes have the end of a line.
    pub(super) fn end(&self) -> Option<u32> {
        match self {
            Self::Bytes => Some(u32::from(b'\n')),
            Self::File(..) => self.first_of(&ENDS),
        }
    }

    /// The token that fills sequences up: a mask leaves it out, so that any serves.
    pub(super) fn pad(&self) -> u32 {
        let own = match self {
            Self::Bytes => None,
            Self::File(f) => f.pad,
        };
        own.or_else(|| self.first_of(&PADS)).unwrap_or(0)
    }
}
