//! How text becomes numbers of tokens.

use compress_compiler::{
    error::{Error, Result},
    words::option::TOKENIZER,
};
use std::path::Path;
use tokenizers::Tokenizer;

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
    File(Box<Tokenizer>),
}

impl Tokens {
    /// The tokenizer in the file at `path`; without one bytes, for a model of a vocabulary of so many.
    ///
    /// # Errors
    /// Data when there is none, or it can't be read.
    pub(super) fn open(path: Option<&Path>, vocabulary: Option<i64>) -> Result<Self> {
        let Some(path) = path else {
            return match vocabulary {
                Some(BYTES) => Ok(Self::Bytes),
                _ => Err(Error::data("text needs the tokenizer that the model was trained with")
                    .help(format!("put its tokenizer.json beside the model, or name it with {TOKENIZER}"))),
            };
        };
        let bytes = std::fs::read(path).map_err(|e| Error::file(format!("cannot be read: {e}")).in_file(path))?;
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| {
            Error::data(format!("it is not a tokenizer: {e}"))
                .in_file(path)
                .help("give the tokenizer.json of Hugging Face's tokenizers")
        })?;
        // How long samples are is for this program to say.
        let whole = |e| Error::data(format!("its truncation can't be turned off: {e}")).in_file(path);
        tokenizer.with_truncation(None).map_err(whole)?;
        tokenizer.with_padding(None);
        Ok(Self::File(Box::new(tokenizer)))
    }

    /// The numbers of the tokens of `text`. `special` adds those that begin and end a sentence.
    ///
    /// # Errors
    /// Data when the tokenizer refuses it.
    pub(super) fn of(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::File(tokenizer) => {
                let made = tokenizer.encode_fast(text, special);
                made.map(|e| e.get_ids().to_vec()).map_err(|e| Error::data(format!("the tokenizer refused it: {e}")))
            }
        }
    }

    fn first_of(&self, names: &[&str]) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::File(tokenizer) => names.iter().find_map(|name| tokenizer.token_to_id(name)),
        }
    }

    /// The token behind a document; bytes have the end of a line.
    pub(super) fn end(&self) -> Option<u32> {
        match self {
            Self::Bytes => Some(u32::from(b'\n')),
            Self::File(_) => self.first_of(&ENDS),
        }
    }

    /// The token that fills sequences up.
    pub(super) fn pad(&self) -> u32 {
        self.first_of(&PADS).unwrap_or(0)
    }
}
