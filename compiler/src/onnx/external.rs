//! Weights outside the model's file (ONNX's external data), in and out.
//!
//! A model names the files that its weights are in, so a hostile one names `/etc/shadow`. What is
//! read lies in the model's own folder: no absolute path, no `..`, and no symbolic link, unless
//! it ends in that folder or in the one where the model itself really lies, as in the caches of
//! Hugging Face. A file is opened once, and everything is checked on what was opened.

use super::{
    source::{self, Blobs, Source, SourceFile},
    stream::Pieces,
    wire::Ref,
};
use crate::{
    error::{Error, Result},
    tensor::DType,
    words::option,
};
use onnx_protobuf::{
    GraphProto, ModelProto, NodeProto, SparseTensorProto, StringStringEntryProto, TensorProto,
    tensor_proto::DataLocation,
};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    os::unix::fs::MetadataExt,
    path::{Component, Path},
};

/// Where the files that a model names are looked for.
pub(super) enum ExternalFiles<'a> {
    /// Nowhere: only the model's own bytes are known.
    Nowhere,
    /// In the folder of the model.
    Beside {
        model: &'a Path,
        /// Whether a file may have other names, perhaps outside the folder.
        allow_hardlinks: bool,
    },
    /// These alone, by the names that the model uses.
    Given(&'a [(String, SourceFile)]),
}

/// Turns every tensor of a skeleton that lies in another file into a reference to it.
///
/// # Errors
/// File, naming the tensor and the path.
pub(super) fn resolve(model: &mut ModelProto, source: &mut Source, place: &ExternalFiles) -> Result<()> {
    let mut files: HashMap<String, u16> = HashMap::new();
    let mut taken: HashMap<u16, BTreeMap<u64, (u64, String)>> = HashMap::new();
    each_tensor(model, &mut |t, _| {
        if t.data_location.enum_value() != Ok(DataLocation::EXTERNAL) {
            return Ok(());
        }
        let tensor = format!("tensor `{}`", t.name);
        let entry = Entry::read(t).map_err(|e| e.about(&tensor))?;
        let at = |e: Error| e.about(format!("`{}`", entry.location)).about(&tensor);
        let place = match files.get(&entry.location) {
            Some(place) => *place,
            None => {
                let place = source.add(find(&entry.location, place, files.len() < KEPT_OPEN).map_err(at)?)?;
                files.insert(entry.location.clone(), place);
                place
            }
        };
        let size = source.files()[usize::from(place)].bytes().len() as u64;
        let len = entry.size(t).map_err(at)?;
        let end = entry.offset.checked_add(len).filter(|end| *end <= size);
        let end = end.ok_or_else(|| {
            let what = format!("has {size} bytes; {len} at {} would end after it", entry.offset);
            at(Error::file(what).help("the file is cut short, or is not the one that belongs to the model"))
        })?;
        let taken = taken.entry(place).or_default();
        let before = taken.range(..end).next_back().filter(|_| len > 0);
        if let Some((start, (stop, other))) = before
            && *stop > entry.offset
            && (*start, *stop) != (entry.offset, end)
        {
            let what = format!("holds it in bytes {} to {end}, which overlap those of `{other}`", entry.offset);
            return Err(at(Error::file(what)));
        }
        if len > 0 {
            taken.insert(entry.offset, (end, t.name.clone()));
        }
        t.raw_data = Ref { file: place, at: entry.offset, len }.encode().into();
        t.external_data.clear();
        t.data_location = DataLocation::DEFAULT.into();
        Ok(())
    })
}

/// What a tensor says of where it is.
struct Entry {
    location: String,
    offset: u64,
    length: Option<u64>,
}

impl Entry {
    fn read(t: &TensorProto) -> Result<Self> {
        if !t.raw_data.is_empty() {
            return Err(Error::malformed("has raw data besides its external data"));
        }
        let mut found: HashMap<&str, &str> = HashMap::new();
        for e in &t.external_data {
            // `checksum` is of the whole file and optional; `basepath` says where an exporter wrote.
            if !matches!(&e.key[..], "location" | "offset" | "length" | "checksum" | "basepath") {
                return Err(Error::file(format!("external data has an unknown key `{}`", e.key)));
            }
            if found.insert(&e.key, &e.value).is_some() {
                return Err(Error::file(format!("external data has two entries `{}`", e.key)));
            }
        }
        let number = |key: &str| {
            let Some(text) = found.get(key) else { return Ok(None) };
            // 48 bits, which no file system exceeds.
            let value = text.parse().ok().filter(|n: &u64| *n < 1 << 48);
            value.map(Some).ok_or_else(|| Error::file(format!("external data has `{key}` {text}")))
        };
        let location = found.get("location").ok_or_else(|| Error::file("external data has no `location`"))?;
        Ok(Self { location: location.to_string(), offset: number("offset")?.unwrap_or(0), length: number("length")? })
    }

    /// The bytes of the tensor, which its shape tells.
    fn size(&self, t: &TensorProto) -> Result<u64> {
        let dims: Option<Vec<usize>> = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect();
        let dims = dims.ok_or_else(|| Error::malformed(format!("has the shape {:?}", t.dims)))?;
        let Some(dtype) = DType::from_onnx(t.data_type) else {
            return self.length.ok_or_else(|| Error::file("external data of an unknown type has no `length`"));
        };
        if dtype == DType::String {
            return Err(Error::file("holds strings, which can't be external data"));
        }
        let size = dtype.bytes(&dims).ok_or_else(|| Error::limit(format!("the shape {dims:?} overflows")))? as u64;
        match self.length {
            Some(length) if length != size => {
                Err(Error::file(format!("is said to hold {length} bytes of it; {dtype}{dims:?} has {size}")))
            }
            _ => Ok(size),
        }
    }
}

/// The file that a model calls `location`, which stays open if `keep` is set.
fn find(location: &str, place: &ExternalFiles, keep: bool) -> Result<SourceFile> {
    match place {
        ExternalFiles::Nowhere => Err(Error::unsupported("is another file, and the model came without a folder")),
        ExternalFiles::Given(files) => {
            let file = files.iter().find(|(name, _)| name == location);
            file.map(|(_, f)| f.clone()).ok_or_else(|| Error::file("was not given"))
        }
        ExternalFiles::Beside { model, allow_hardlinks } => {
            let folder = match model.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            let file = open(location, folder, model)?;
            let io = |e: std::io::Error| Error::file(format!("can't be read: {e}"));
            let info = file.metadata().map_err(io)?;
            if !info.is_file() {
                return Err(Error::file("is not a regular file"));
            }
            if info.nlink() > 1 && !allow_hardlinks {
                return Err(Error::file("has other names too (hard links), perhaps outside the model's folder")
                    .help(format!("copy it, or pass {} if you trust the model", option::ALLOW_HARDLINKS)));
            }
            Ok(SourceFile::new(&folder.join(location), source::map(file, keep).map_err(io)?))
        }
    }
}

const OUTSIDE: &str = "lies outside the model's folder";

/// Opens what a model may name.
fn open(location: &str, folder: &Path, model: &Path) -> Result<File> {
    let outside = || Error::file(OUTSIDE).help("move it beside the model, or save the model as one file");
    let named = Path::new(location);
    if location.is_empty() || location.contains('\0') {
        return Err(Error::file("is not a name of a file"));
    }
    if named.components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(outside());
    }
    let fail = |e: Errno| match e {
        Errno::NOENT => Error::file("is not there").help("it belongs beside the model; copy it along"),
        Errno::XDEV => outside(),
        e => Error::file(format!("can't be opened: {e}")),
    };
    match beneath(folder, named) {
        Err(Errno::LOOP) => {}
        Err(e) => return Err(fail(e)),
        Ok(fd) => return Ok(fd.into()),
    }
    // A symbolic link: its end has to lie in the model's folder, or where the model really lies.
    let io = |e: std::io::Error| Error::file(format!("is a symbolic link that can't be followed: {e}"));
    let target = folder.join(named).canonicalize().map_err(io)?;
    let roots = [folder.canonicalize().ok(), model.canonicalize().ok().and_then(|m| Some(m.parent()?.to_path_buf()))];
    let inside = roots.iter().flatten().find_map(|root| Some((root, target.strip_prefix(root).ok()?)));
    let (root, rest) = inside.ok_or_else(outside)?;
    // Opened without following links any more: nobody can change where it leads meanwhile.
    beneath(root, rest).map(File::from).map_err(fail)
}

/// Opens `path` under `root`, following no symbolic link.
fn beneath(root: &Path, path: &Path) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::openat(CWD, root, FOLDER, Mode::empty())?;
    #[cfg(target_os = "linux")]
    match at_once(&root, path) {
        // Old kernels don't know the call, and some sandboxes forbid it.
        Err(Errno::NOSYS | Errno::PERM) => {}
        done => return done,
    }
    folder_by_folder(root, path)
}

const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

#[cfg(target_os = "linux")]
fn at_once(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags as Resolve;
    let how = Resolve::BENEATH | Resolve::NO_SYMLINKS | Resolve::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, FILE, Mode::empty(), how)
}

fn folder_by_folder(root: OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let mut at = root;
    let mut names: Vec<_> = path.components().filter(|c| *c != Component::CurDir).collect();
    let last = names.pop().ok_or(Errno::ISDIR)?;
    for name in names {
        let name = name.as_os_str();
        let next = rustix::fs::openat(&at, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        // Systems say of a link that it isn't a folder.
        let is_link = || {
            let stat = rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink)
        };
        at = next.map_err(|e| if e == Errno::NOTDIR && is_link() { Errno::LOOP } else { e })?;
    }
    rustix::fs::openat(&at, last.as_os_str(), FILE | OFlags::NOFOLLOW, Mode::empty())
}

/// A process may have a thousand files open; a model may have a file for each weight.
const KEPT_OPEN: usize = 64;
/// Smaller weights stay in the model's file.
const SMALLEST: usize = 1024;
/// Weights from this size on begin at a page, so that a reader can map them alone.
const PAGED: usize = 64 << 10;

/// Moves the weights of a skeleton out of it: each then says where in the returned file it is.
/// The file's name is left open.
///
/// # Errors
/// A bug when a tensor's raw data is not a reference.
pub(super) fn move_out(model: &mut ModelProto, blobs: &Blobs) -> Result<Pieces> {
    let mut file = Pieces::default();
    each_tensor(model, &mut |t, initializer| {
        if !initializer || t.raw_data.is_empty() {
            return Ok(());
        }
        let bytes = blobs.resolve(&t.raw_data)?;
        if bytes.len() < SMALLEST {
            return Ok(());
        }
        let offset = file.append(&bytes, if bytes.len() < PAGED { 64 } else { 4096 });
        t.raw_data.clear();
        t.data_location = DataLocation::EXTERNAL.into();
        t.external_data = vec![
            entry("location", String::new()),
            entry("offset", offset.to_string()),
            entry("length", bytes.len().to_string()),
        ];
        Ok(())
    })?;
    Ok(file)
}

/// Says how the file is called that [`move_out`] returned.
///
/// # Errors
/// None of its own.
pub(super) fn set_location(model: &mut ModelProto, name: &str) -> Result<()> {
    each_tensor(model, &mut |t, _| {
        if t.data_location.enum_value() == Ok(DataLocation::EXTERNAL) {
            t.external_data.iter_mut().filter(|e| e.key == "location").for_each(|e| e.value = name.into());
        }
        Ok(())
    })
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: key.into(), value, ..Default::default() }
}

type See<'a> = dyn FnMut(&mut TensorProto, bool) -> Result<()> + 'a;

/// Shows every tensor of a model, and whether it is an initializer.
fn each_tensor(model: &mut ModelProto, see: &mut See) -> Result<()> {
    for t in &mut model.training_info {
        t.initialization.as_mut().into_iter().try_for_each(|g| in_graph(g, see))?;
        t.algorithm.as_mut().into_iter().try_for_each(|g| in_graph(g, see))?;
    }
    for f in &mut model.functions {
        f.attribute_proto.iter_mut().try_for_each(|a| in_attribute(a, see))?;
        f.node.iter_mut().try_for_each(|n| in_node(n, see))?;
    }
    model.graph.as_mut().into_iter().try_for_each(|g| in_graph(g, see))
}

fn in_graph(g: &mut GraphProto, see: &mut See) -> Result<()> {
    g.initializer.iter_mut().try_for_each(|t| see(t, true))?;
    g.sparse_initializer.iter_mut().try_for_each(|s| in_sparse(s, see))?;
    g.node.iter_mut().try_for_each(|n| in_node(n, see))
}

fn in_node(n: &mut NodeProto, see: &mut See) -> Result<()> {
    n.attribute.iter_mut().try_for_each(|a| in_attribute(a, see))
}

fn in_attribute(a: &mut onnx_protobuf::AttributeProto, see: &mut See) -> Result<()> {
    a.t.as_mut().into_iter().chain(&mut a.tensors).try_for_each(|t| see(t, false))?;
    a.sparse_tensor.as_mut().into_iter().chain(&mut a.sparse_tensors).try_for_each(|s| in_sparse(s, see))?;
    a.g.as_mut().into_iter().chain(&mut a.graphs).try_for_each(|g| in_graph(g, see))
}

fn in_sparse(s: &mut SparseTensorProto, see: &mut See) -> Result<()> {
    s.values.as_mut().into_iter().chain(s.indices.as_mut()).try_for_each(|t| see(t, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn files_are_opened_alike_at_once_and_folder_by_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("inner/deep")).unwrap();
        fs::write(path("inner/deep/weights"), b"w").unwrap();
        symlink("inner/deep/weights", path("link")).unwrap();
        symlink("inner", path("folder")).unwrap();
        let root = || rustix::fs::openat(CWD, folder.path(), FOLDER, Mode::empty()).unwrap();
        let cases = [
            ("inner/deep/weights", Ok(())),
            ("./inner/./deep/weights", Ok(())),
            ("inner/deep/other", Err(Errno::NOENT)),
            ("other/weights", Err(Errno::NOENT)),
            ("inner/deep/weights/inside", Err(Errno::NOTDIR)),
            ("link", Err(Errno::LOOP)),
            ("folder/deep/weights", Err(Errno::LOOP)),
        ];
        for (name, wanted) in cases {
            assert_eq!(folder_by_folder(root(), Path::new(name)).map(drop), wanted, "{name}");
            #[cfg(target_os = "linux")]
            match at_once(&root(), Path::new(name)).map(drop) {
                Err(Errno::NOSYS | Errno::PERM) => {}
                done => assert_eq!(done, wanted, "{name}"),
            }
        }
    }
}
