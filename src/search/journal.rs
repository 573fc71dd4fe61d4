//! The folder of a search: a line for each way that was tried, and the models and recipes of the best.

use super::{
    Search,
    front::{Objectives, Worst},
    trial::Lab,
    tried::{Standings, Tried},
};
use crate::{compress::Compress, facts::sha256, files, given::DataSource, options::DataOptions, recipe::Recipe};
use compress_compiler::{
    error::{Error, Result},
    onnx,
    words::option,
};
use compress_passes::sensitivity::LayerAlone;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    ffi::OsStr,
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
    /// Seconds that judging them alone took.
    pub seconds: f64,
}

impl Begun {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.table.iter().map(|layer| &layer.node[..])
    }
}

/// The seconds of a search until it was stopped in the middle of a try.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spent {
    spent: f64,
}

/// The folder, and what it has.
pub struct Journal<'a> {
    search: &'a Search,
    folder: PathBuf,
    digest: String,
    validation: usize,
    of_share: bool,
    worst: Worst,
    begun: Option<Begun>,
    tried: Vec<Tried>,
    spent: Spent,
    /// The numbers of the ways whose models are kept.
    kept: Vec<usize>,
    /// Held as long as the search works in the folder.
    lock: Option<fs::File>,
}

impl<'a> Journal<'a> {
    /// Opens the folder of a search: an empty one, or one to go on with.
    ///
    /// # Errors
    /// File when there is one that may be neither gone on with nor replaced; usage when it is of another search.
    pub fn open(search: &'a Search, lab: &Lab) -> Result<Self> {
        let mut this = Self::at(search, search.folder(), Self::digest(search, lab)?, lab);
        files::made(&this.folder)?;
        files::made(&this.points())?;
        this.lock = Some(this.locked()?);
        match this.written()? {
            Some(written) if search.resume => this.go_on(&written)?,
            Some(_) if !search.force => {
                let help = format!("{} goes on with it, {} begins anew", option::RESUME, option::FORCE);
                return Err(Error::file("there is a search already").in_file(this.path()).help(help));
            }
            Some(_) => this.clear()?,
            None => {}
        }
        Ok(this)
    }

    /// A digest of all that shapes what is tried.
    fn digest(search: &Search, lab: &Lab) -> Result<String> {
        let essence = Recipe::Search(search.essence()).table()?.to_string();
        let of = (env!("CARGO_PKG_VERSION"), lab.digest(), lab.data()?, essence);
        Ok(sha256(format!("{of:?}").as_bytes()))
    }

    fn at(search: &'a Search, folder: PathBuf, digest: String, lab: &Lab) -> Self {
        let (begun, tried, spent, kept) = Default::default();
        let (validation, of_share, worst) = (lab.validation, lab.of_share, lab.worst());
        Self { search, folder, digest, validation, of_share, worst, begun, tried, spent, kept, lock: None }
    }

    /// Makes the folder of a search of what others tried who searched at once, in these folders, each so many ways; what several of them
    /// tried, of the first.
    ///
    /// # Errors
    /// As for [`Journal::open`]; file for a folder that can't be read, is not whole, or in which a search works.
    pub fn gathered(search: &'a Search, parts: &[(PathBuf, usize)], lab: &Lab) -> Result<Self> {
        let digest = Self::digest(search, lab)?;
        let (mut all, mut known): (Vec<_>, Option<Begun>) = Default::default();
        for (folder, count) in parts {
            let part = Self::at(search, folder.clone(), digest.clone(), lab);
            let is_busy = fs::File::open(part.lock_path())
                .is_ok_and(|lock| matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)));
            if is_busy {
                return Err(Error::file("a search works in it still").in_file(folder).help("wait for it"));
            }
            let none = || Error::file("has no search").in_file(folder);
            let (begun, tried, _) = part.parsed(&part.written()?.ok_or_else(none)?)?.ok_or_else(none)?;
            if tried.len() != *count {
                let what = format!("has {} of the {count} ways that its report tells of", tried.len());
                return Err(Error::file(what).in_file(part.path()).help(format!("{} mends it", option::RESUME)));
            }
            if known.as_ref().is_some_and(|first| first.names().ne(begun.names())) {
                return Err(Error::usage("its layers are not those of the other parts").in_file(part.path()));
            }
            known.get_or_insert(begun);
            all.extend(tried.into_iter().map(|tried| (part.model(tried.number), tried)));
        }
        all.sort_by(|(_, a), (_, b)| a.at.total_cmp(&b.at));
        let known = known.ok_or_else(|| Error::bug("a search without parts"))?;
        // Only now: parts that make no whole leave what is there.
        let mut this = Self::open(search, lab)?;
        let table = this.begin(known.table, known.times, known.seconds)?.table;
        let mut seen = HashSet::new();
        for (model, tried) in all {
            if !seen.insert(tried.way.clone()) {
                continue;
            }
            let wanted = tried.outcome.as_ref().map(|o| o.sha256.clone());
            let put = |to: &Path| {
                let fail = |what: String| Error::file(what).in_file(&model);
                let bytes = fs::read(&model).map_err(|e| fail(format!("cannot be read: {e}")))?;
                if Some(sha256(&bytes)) != wanted {
                    return Err(fail("is not the model that the search made".into()));
                }
                onnx::write_atomic(to, &bytes, true)
            };
            // What a part found better than others of its own may be worse than those of all.
            let kept = model.exists();
            // What it promised to add to the front of its part says nothing of what it adds to that of all.
            let tried = Tried { number: this.tried.len() + 1, promised: None, ..tried };
            this.add(tried, kept.then_some(put), &table)?;
        }
        Ok(this)
    }

    /// Keeps others out of the folder, as long as this runs.
    fn locked(&self) -> Result<fs::File> {
        let path = self.lock_path();
        let fail = |what: String| Error::file(what).in_file(&path);
        let file = fs::File::create(&path).map_err(|e| fail(format!("cannot be written: {e}")))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => {
                Err(fail("another search works in this folder".into()).help("wait for it, or give another folder"))
            }
            // There are file systems without locks.
            Err(fs::TryLockError::Error(_)) => Ok(file),
        }
    }

    /// What is written down, if anything is.
    fn written(&self) -> Result<Option<Vec<u8>>> {
        match fs::read(self.path()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::file(format!("cannot be read: {e}")).in_file(self.path())),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        let help = format!("{} begins anew", option::FORCE);
        Error::file(format!("is damaged: {what}")).in_file(self.path()).help(help)
    }

    fn go_on(&mut self, written: &[u8]) -> Result<()> {
        if let Some((begun, tried, spent)) = self.parsed(written)? {
            (self.begun, self.tried, self.spent) = (Some(begun), tried, spent);
            self.sweep_points()?;
        }
        self.rewrite()
    }

    /// What is known at the beginning, what was tried, and the time that was spent; nothing where the search was stopped before it knew
    /// anything.
    fn parsed(&self, written: &[u8]) -> Result<Option<(Begun, Vec<Tried>, Spent)>> {
        let text = str::from_utf8(written).map_err(|_| self.damaged("it is not text"))?;
        let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line)).peekable();
        let Some((_, first)) = lines.next() else { return Ok(None) };
        let begun: Begun = match serde_json::from_str(first) {
            Ok(begun) => begun,
            Err(_) if lines.peek().is_none() && !text.ends_with('\n') => return Ok(None),
            Err(e) => return Err(self.damaged(&format!("line 1: {e}"))),
        };
        if begun.search != self.digest {
            let help =
                format!("give the options, the model and the version that it was begun with, or {}", option::FORCE);
            return Err(Error::usage("it is the folder of another search").in_file(self.path()).help(help));
        }
        let (mut tried, mut spent): (Vec<Tried>, Spent) = Default::default();
        while let Some((number, line)) = lines.next() {
            if let Ok(until) = serde_json::from_str::<Spent>(line)
                && is_time(until.spent)
            {
                spent = until;
                continue;
            }
            let read = serde_json::from_str::<Tried>(line).map_err(|e| e.to_string());
            match read.and_then(|read| sound(read, tried.len() + 1, &begun)) {
                Ok(sound) => tried.push(sound),
                // The last line may be cut off where the machine stopped.
                Err(_) if lines.peek().is_none() && !text.ends_with('\n') => {}
                Err(e) => return Err(self.damaged(&format!("line {number}: {e}"))),
            }
        }
        Ok(Some((begun, tried, spent)))
    }

    /// Removes models and recipes that are not those of the ways that were tried: a stop may have left them.
    fn sweep_points(&mut self) -> Result<()> {
        let is_its = |tried: &Tried| {
            let bytes = fs::read(self.model(tried.number)).unwrap_or_default();
            tried.outcome.as_ref().is_some_and(|o| !bytes.is_empty() && sha256(&bytes) == o.sha256)
        };
        let kept = self.tried.iter().filter(|tried| is_its(tried)).map(|tried| tried.number).collect();
        self.kept = kept;
        let wanted: HashSet<PathBuf> =
            self.kept.iter().flat_map(|number| [self.model(*number), self.recipe(*number)]).collect();
        self.remove_ways_but(&wanted)
    }

    /// Removes models and recipes of ways from the folder of points, but for those that are wanted.
    fn remove_ways_but(&self, wanted: &HashSet<PathBuf>) -> Result<()> {
        let points = self.points();
        let fail = |e: std::io::Error| Error::file(format!("cannot be read: {e}")).in_file(&points);
        for entry in fs::read_dir(&points).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            // What a user made here stays, such as the model of a recipe that was run.
            if path.is_file() && is_of_a_way(&path) && !wanted.contains(&path) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Writes the file anew, without what was cut off.
    fn rewrite(&self) -> Result<()> {
        let begun = self.begun.iter().map(json);
        let spent = (self.spent.spent > 0.0).then(|| json(&self.spent));
        let lines = begun.chain(self.tried.iter().map(json)).chain(spent).collect::<Result<Vec<_>>>()?;
        let text: String = lines.into_iter().map(|line| line + "\n").collect();
        onnx::write_atomic(&self.path(), text.as_bytes(), true)
    }

    /// Removes what an earlier search left.
    fn clear(&self) -> Result<()> {
        self.remove_ways_but(&HashSet::new())?;
        remove(&self.path())
    }

    fn lock_path(&self) -> PathBuf {
        self.folder.join("lock")
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
        Standings::new(&self.tried, self.of_share)
    }

    /// The numbers of the ways that no other beats, by what they are taken to reach and by what was measured of them, as what is learnt
    /// later may bring one of the latter back; and what all of them reach.
    fn best(&self) -> (HashSet<usize>, f64) {
        let front = self.standings().front();
        let reached: Vec<Objectives> = front.iter().map(|(_, objectives)| *objectives).collect();
        let as_measured = Standings::new(&self.tried, false).front();
        let numbers = front.into_iter().chain(as_measured).map(|(tried, _)| tried.number).collect();
        (numbers, self.worst.hypervolume(&reached))
    }

    /// Keeps a model of a way that is on the front, which `put` puts there, and its recipe.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn keep(&self, tried: &Tried, put: impl FnOnce(&Path) -> Result<()>, table: &[LayerAlone]) -> Result<()> {
        let recipe = tried.way.recipe(self.search, table, Some(self.validation))?;
        // It can be run from any folder.
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        let data = |source: &DataSource| source.path().map_or(source.clone(), |path| whole(path).into());
        let DataOptions { data: given, eval, tokenizer, encoder, .. } = &recipe.data;
        let sources = DataOptions {
            data: given.as_ref().map(data),
            eval: eval.as_ref().map(data),
            tokenizer: tokenizer.as_deref().map(whole),
            encoder: encoder.as_deref().map(whole),
            ..recipe.data.clone()
        };
        let made = self.points().join(format!("{:03}.again.onnx", tried.number));
        let recipe = Compress { model: whole(&recipe.model), output: Some(whole(&made)), data: sources, ..recipe };
        onnx::write_atomic(&self.recipe(tried.number), Recipe::Compress(recipe).text()?.as_bytes(), true)?;
        put(&self.model(tried.number))
    }

    /// How long was searched so far.
    pub fn spent(&self) -> Duration {
        Duration::from_secs_f64(self.tried.last().map_or(0.0, |t| t.at).max(self.spent.spent))
    }

    /// Writes down the time that was spent when a try was stopped, which no line of a way has.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn spend(&mut self, spent: Duration) -> Result<()> {
        self.spent = Spent { spent: spent.as_secs_f64() };
        self.append(&json(&self.spent)?)
    }

    /// Writes down what is known at the beginning.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn begin(&mut self, table: Vec<LayerAlone>, times: Vec<[f64; 2]>, seconds: f64) -> Result<Begun> {
        let begun = Begun { search: self.digest.clone(), table, times, seconds };
        self.append(&json(&begun)?)?;
        self.begun = Some(begun.clone());
        Ok(begun)
    }

    /// Writes down what came of a way. Its model, which `put` puts in its place, and its recipe stay if it is on the front; those that
    /// leave it are removed. Returns whether it is.
    ///
    /// # Errors
    /// File when something can't be written.
    pub fn add(
        &mut self,
        tried: Tried,
        put: Option<impl FnOnce(&Path) -> Result<()>>,
        table: &[LayerAlone],
    ) -> Result<bool> {
        let number = tried.number;
        self.tried.push(tried);
        let (best, reached) = self.best();
        let is_best = best.contains(&number);
        let last = self.tried.len() - 1;
        self.tried[last].reached = reached;
        if let Some(put) = put.filter(|_| is_best) {
            self.keep(&self.tried[last], put, table)?;
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

/// Whether a file has the name of a way's model or recipe.
fn is_of_a_way(path: &Path) -> bool {
    let is_number = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    path.file_stem().is_some_and(is_number) && path.extension().is_some_and(|e| e == "onnx" || e == "toml")
}

/// A line, if it is one that a search could have written as this `number`.
fn sound(tried: Tried, number: usize, begun: &Begun) -> std::result::Result<Tried, String> {
    let mut layers = tried.way.float.iter().chain(&tried.way.four);
    match () {
        () if tried.number != number => Err(format!("it is numbered {}", tried.number)),
        () if !is_time(tried.at) || !is_time(tried.seconds) => Err("it took no time that there is".into()),
        () if layers.any(|layer| *layer >= begun.table.len()) => Err("it names a layer that the model hasn't".into()),
        () => Ok(tried),
    }
}

fn is_time(seconds: f64) -> bool {
    (0.0..1e9).contains(&seconds)
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
