//! What to do to pictures and arrays before the model sees them.

use crate::settings::Settings;
use compress_compiler::{
    error::{Error, Result},
    serde_as_text,
};
use std::{fmt, str::FromStr};

const SETTINGS: Settings = Settings {
    of: "preprocessing",
    known: "`imagenet`, or a list such as \
        resize=256,crop=224,scale=255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,bgr \
        (every part may be left out; mean and std take one value, or one per channel)",
};

/// How stored values become model values: `(x / scale - mean) / std`.
///
/// `resize` and `crop` concern picture files only, since arrays must already have the model's
/// size. `mean` and `std` follow the order in which the model takes its channels, so with `bgr`
/// they are blue, green, red.
///
/// It is read from text with [`FromStr`] and written back with [`Display`](fmt::Display).
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    pub(super) resize: Option<usize>,
    pub(super) crop: Option<usize>,
    pub(super) scale: Option<f32>,
    pub(super) mean: Vec<f32>,
    pub(super) std: Vec<f32>,
    pub(super) bgr: bool,
}

impl Preprocess {
    /// Whether it changes values, rather than only sizes or the order of channels.
    pub(super) fn has_arithmetic(&self) -> bool {
        self.scale.is_some() || !self.mean.is_empty() || !self.std.is_empty()
    }

    /// Without this check a number of values that can fit no picture would only surface per input.
    fn checked(self) -> Result<Self> {
        let (means, stds) = (self.mean.len(), self.std.len());
        if means > 1 && stds > 1 && means != stds {
            return Err(SETTINGS.bad(format!("mean has {means} values but std has {stds}")));
        }
        if let (Some(resize), Some(crop)) = (self.resize, self.crop)
            && crop > resize
        {
            return Err(SETTINGS.bad(format!("crop={crop} does not fit in resize={resize}")));
        }
        Ok(self)
    }
}

impl FromStr for Preprocess {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.trim() == "imagenet" {
            return Ok(Self {
                resize: Some(256),
                crop: Some(224),
                scale: Some(255.0),
                mean: vec![0.485, 0.456, 0.406],
                std: vec![0.229, 0.224, 0.225],
                bgr: false,
            });
        }
        let mut read = Self { resize: None, crop: None, scale: None, mean: vec![], std: vec![], bgr: false };
        SETTINGS.each(text, |key, value| {
            match (key, value) {
                ("resize", Some(v)) => read.resize = Some(SETTINGS.pixels(key, v)?),
                ("crop", Some(v)) => read.crop = Some(SETTINGS.pixels(key, v)?),
                ("scale", Some(v)) => read.scale = Some(SETTINGS.positive(key, v)?),
                ("mean", Some(v)) => {
                    read.mean = v.split(':').map(|v| SETTINGS.number(key, v)).collect::<Result<_>>()?;
                }
                ("std", Some(v)) => {
                    read.std = v.split(':').map(|v| SETTINGS.positive(key, v)).collect::<Result<_>>()?;
                }
                ("bgr", None) => read.bgr = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        read.checked()
    }
}

serde_as_text!(Preprocess);

impl fmt::Display for Preprocess {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let list = |values: &[f32]| values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(":");
        let parts = [
            self.resize.map(|v| format!("resize={v}")),
            self.crop.map(|v| format!("crop={v}")),
            self.scale.map(|v| format!("scale={v}")),
            (!self.mean.is_empty()).then(|| format!("mean={}", list(&self.mean))),
            (!self.std.is_empty()).then(|| format!("std={}", list(&self.std))),
            self.bgr.then(|| "bgr".to_owned()),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::error::Kind;

    #[test]
    fn round_trips_through_text() {
        for text in ["imagenet", "bgr", "scale=1,bgr", "resize=8,crop=8,mean=0.5,std=0.1:0.2:1e-7"] {
            let read: Preprocess = text.parse().unwrap();
            assert_eq!(read, read.to_string().parse().unwrap(), "{text}");
        }
        let spaced: Preprocess = " resize = 256 , bgr ".parse().unwrap();
        assert_eq!(spaced.to_string(), "resize=256,bgr");
    }

    #[test]
    fn refuses_what_cannot_work_and_lists_what_can() {
        for text in [
            "",
            ",",
            "cifar",
            "std=0",
            "std=-1",
            "mean=NaN",
            "scale=inf",
            "scale=0",
            "bgr=1",
            "resize",
            "resize=0",
            "crop=99999999999",
            "mean=1:2,std=1:2:3",
            "resize=8,crop=9",
            "bgr,bgr",
            "mean=",
            "mean=1:",
        ] {
            let e = text.parse::<Preprocess>().expect_err(text);
            assert_eq!(e.kind(), Kind::Usage, "{text}");
            assert!(e.to_string().contains("imagenet"), "{e}");
        }
    }
}
