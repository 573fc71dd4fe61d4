//! The learning rate as a function of how far the training is. A function, not a state: a job that resumes in the
//! middle has nothing to restore.

use compress_compiler::{
    error::{Error, Result},
    serde_as_text,
};
use std::{f64::consts::PI, fmt, str::FromStr};

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Schedule {
    /// Not at all.
    Constant,
    /// Along half a cosine, to zero (Loshchilov and Hutter 2017).
    #[default]
    Cosine,
    /// By `factor` each time that another `every` of the training is over.
    Step {
        /// A share of the training.
        every: f64,
        /// What the rate is multiplied by.
        factor: f64,
    },
}

impl Schedule {
    /// The factor of the learning rate when the share `done` of the training is over, of which the first `warmup` is
    /// a rise from zero in a straight line.
    pub fn factor(&self, done: f64, warmup: f64) -> f64 {
        if done < warmup {
            return done / warmup;
        }
        let rest = ((done - warmup) / (1.0 - warmup).max(f64::EPSILON)).clamp(0.0, 1.0);
        match self {
            Self::Constant => 1.0,
            Self::Cosine => (1.0 + (PI * rest).cos()) / 2.0,
            Self::Step { every, factor } => factor.powf((rest / every).floor()),
        }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let share = |s: &str| s.parse().ok().filter(|v| (0.0..=1.0).contains(v) && *v > 0.0);
        let step = |s: &str| {
            let (every, factor) = s.split_once(',')?;
            Some(Self::Step { every: share(every)?, factor: share(factor)? })
        };
        let found = match s {
            "constant" => Some(Self::Constant),
            "cosine" => Some(Self::Cosine),
            _ => s.strip_prefix("step=").and_then(step),
        };
        found.ok_or_else(|| {
            Error::usage(format!("schedule `{s}`"))
                .help("known: constant, cosine, step=EVERY,FACTOR (a tenth after each third: step=0.34,0.1)")
        })
    }
}

serde_as_text!(Schedule);

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Cosine => f.write_str("cosine"),
            Self::Step { every, factor } => write!(f, "step={every},{factor}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_rise_and_fall() {
        let cosine = Schedule::Cosine;
        assert_eq!(cosine.factor(0.0, 0.0), 1.0);
        assert!((cosine.factor(0.5, 0.0) - 0.5).abs() < 1e-12 && cosine.factor(1.0, 0.0) < 1e-12);
        assert_eq!(cosine.factor(0.05, 0.1), 0.5);
        assert_eq!(cosine.factor(0.1, 0.1), 1.0);
        let step: Schedule = "step=0.4,0.1".parse().unwrap();
        assert_eq!(step.factor(0.39, 0.0), 1.0);
        assert!((step.factor(0.4, 0.0) - 0.1).abs() < 1e-12 && (step.factor(0.9, 0.0) - 0.01).abs() < 1e-12);
        assert_eq!(step.to_string().parse::<Schedule>().unwrap(), step);
        for bad in ["step=0,0.1", "step=2,1", "linear", "step=0.1"] {
            assert_eq!(bad.parse::<Schedule>().unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
