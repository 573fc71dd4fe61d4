//! The folder of a search: a line for each way that was tried, and the models and recipes of the best.

use super::{
    Search,
    trial::Lab,
    tried::{Standings, Tried},
};
use crate::{facts::sha256, files, recipe::Recipe};
use compress_compiler::{
    error::{Error, Result},
    onnx::{self, Staged},
    words::option,
};
use compress_passes::sensitivity::LayerAlone;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// What a search knew before it tried anything.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begun {
    /// A digest of all that shapes what is tried.
    search: String,
    /// The layers.
    pub table: Vec<LayerAlone>,
    /// The time of each in floats and in INT8, in parts of a run of the original.
    pub times: Vec<[f64; 2]>,
}

/// The folder, and what it has.
pub struct Journal<'a> {
    search: &'a Search,
    folder: PathBuf,
    digest: String,
    validation: usize,
    of_share: bool,
    begun: Option<Begun>,
    tried: Vec<Tried>,
    /// The numbers of the ways whose models are kept.
    kept: Vec<usize>,
}

impl<'a> Journal<'a> {
    /// Opens the folder of a search: an empty one, or one to go on with.
    ///
    /// # Errors
    /// File when there is one that may be neither gone on with nor replaced; usage when it is of another search.
    pub fn open(search: &'a Search, lab: &Lab) -> Result<Self> {
        let folder = search.folder();
        let essence = Recipe::Search(search.essence()).table()?.to_string();
        let of = (env!("CARGO_PKG_VERSION"), lab.digest(), essence);
        let digest = sha256(format!("{of:?}").as_bytes());
        let (begun, tried, kept) = Default::default();
        let mut this =
            Self { search, folder, digest, validation: lab.validation, of_share: lab.of_share, begun, tried, kept };
        let path = this.path();
        match fs::read_to_string(&path) {
            Ok(text) if search.resume => this.read(&text).map_err(|e| e.in_file(&path))?,
            Ok(_) if !search.force => {
                let help = format!("{} goes on with it, {} begins anew", option::RESUME, option::FORCE);
                return Err(Error::file("there is a search already").in_file(&path).help(help));
            }
            Ok(_) => this.clear()?,
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(Error::file(format!("cannot be read: {e}")).in_file(&path)),
        }
        files::made(&this.folder)?;
        files::made(&this.points())?;
        Ok(this)
    }

    fn read(&mut self, text: &str) -> Result<()> {
        let mut lines = text.lines();
        let Some(begun) = lines.next().and_then(|line| serde_json::from_str::<Begun>(line).ok()) else { return Ok(()) };
        if begun.search != self.digest {
            let help =
                format!("give the options, the model and the version that it was begun with, or {}", option::FORCE);
            return Err(Error::usage("it is the folder of another search").help(help));
        }
        self.begun = Some(begun);
        // The last line may be cut off where the machine stopped.
        self.tried = lines.map_while(|line| serde_json::from_str(line).ok()).collect();
        let numbers = 1..=self.tried.len();
        self.kept = numbers.filter(|number| self.model(*number).exists()).collect();
        let whole: Vec<String> =
            [json(&self.begun)?].into_iter().chain(self.tried.iter().map(json).collect::<Result<Vec<_>>>()?).collect();
        onnx::write_atomic(&self.path(), (whole.join("\n") + "\n").as_bytes(), true)
    }

    /// Removes what an earlier search left.
    fn clear(&self) -> Result<()> {
        let fail = |e: std::io::Error| Error::file(format!("cannot be removed: {e}")).in_file(self.points());
        match fs::remove_dir_all(self.points()) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(fail(e)),
            _ => fs::remove_file(self.path()).map_err(fail),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("tried.jsonl")
    }

    fn points(&self) -> PathBuf {
        self.folder.join("points")
    }

    /// The file of the model of a way.
    pub fn model(&self, number: usize) -> PathBuf {
        self.points().join(format!("{number:03}.onnx"))
    }

    /// The file of its recipe.
    pub fn recipe(&self, number: usize) -> PathBuf {
        self.points().join(format!("{number:03}.toml"))
    }

    /// What was known at the beginning, if that is behind.
    pub fn begun(&self) -> Option<&Begun> {
        self.begun.as_ref()
    }

    /// All ways that were tried.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// All ways that were tried, and what they are taken to reach.
    pub fn standings(&self) -> Standings<'_> {
        Standings::new(&self.tried, self.validation, self.of_share)
    }

    /// The numbers of the ways that no other beats, by what they are taken to reach and by what was measured of them: what is learnt
    /// later may bring one of the latter back.
    fn best(&self) -> HashSet<usize> {
        let as_measured = Standings::new(&self.tried, usize::MAX, self.of_share);
        let fronts = [self.standings().front(), as_measured.front()];
        fronts.into_iter().flatten().map(|(tried, _)| tried.number).collect()
    }

    /// Keeps a model that was made again of a way that is on the front.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn keep(&self, tried: &Tried, staged: Staged, table: &[LayerAlone]) -> Result<()> {
        let recipe = tried.way.recipe(self.search, table, Some(self.validation))?;
        onnx::write_atomic(&self.recipe(tried.number), Recipe::Compress(recipe).text()?.as_bytes(), true)?;
        staged.commit(true)
    }

    /// How long was searched so far.
    pub fn spent(&self) -> Duration {
        Duration::from_secs_f64(self.tried.last().map_or(0.0, |t| t.at))
    }

    /// Writes down what is known at the beginning.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn begin(&mut self, table: Vec<LayerAlone>, times: Vec<[f64; 2]>) -> Result<Begun> {
        let begun = Begun { search: self.digest.clone(), table, times };
        self.append(&json(&begun)?)?;
        self.begun = Some(begun.clone());
        Ok(begun)
    }

    /// Writes down what came of a way. Its model and its recipe stay if it is on the front; those that leave it are removed. Returns
    /// whether it is.
    ///
    /// # Errors
    /// File when something can't be written.
    pub fn add(&mut self, tried: Tried, staged: Option<Staged>, table: &[LayerAlone]) -> Result<bool> {
        let number = tried.number;
        self.tried.push(tried);
        let best = self.best();
        let is_best = best.contains(&number);
        let last = self.tried.len() - 1;
        if let Some(staged) = staged.filter(|_| is_best) {
            self.keep(&self.tried[last], staged, table)?;
            self.kept.push(number);
        }
        self.append(&json(&self.tried[last])?)?;
        // Only now: what is written down as the best has its files at any time.
        for gone in self.kept.extract_if(.., |kept| !best.contains(kept)).collect::<Vec<_>>() {
            for path in [self.model(gone), self.recipe(gone)] {
                remove(&path)?;
            }
        }
        Ok(is_best)
    }

    fn append(&self, line: &str) -> Result<()> {
        let path = self.path();
        let open = fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = open.and_then(|mut file| {
            file.write_all(format!("{line}\n").as_bytes())?;
            file.sync_data()
        });
        written.map_err(|e| Error::file(format!("cannot be written: {e}")).in_file(&path))
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::file(format!("cannot be removed: {e}")).in_file(path)),
        _ => Ok(()),
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::bug(e.to_string()))
}
