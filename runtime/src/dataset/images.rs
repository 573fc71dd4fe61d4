//! Folders of pictures, decoded when a batch asks for them.

use super::{
    InputSpec, Preprocess,
    array::{self, batch_shape},
    source::{self, Format, PathKind, SampleSource},
    values::{self, Values},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
    value::Dim,
};
use image::{DynamicImage, ImageError, ImageFormat, ImageReader, Limits, imageops::FilterType};
use rayon::prelude::*;
use std::{
    collections::HashSet,
    ffi::OsString,
    fs,
    io::BufReader,
    path::{Path, PathBuf},
};

pub(super) const FORMAT: Format = Format {
    means: "a folder of pictures (png, jpg, bmp) or of one folder of pictures for each class",
    open: |path, asked| match asked.place {
        PathKind::Folder => {
            let found = Pictures::open(path, asked.inputs, asked.reading.preprocess.as_ref())?;
            Ok(found.map(|pictures| Box::new(pictures) as _))
        }
        PathKind::File if is_picture(path) => Err(source::single()),
        PathKind::File | PathKind::Nothing => Ok(None),
    },
};

const DECODED: [ImageFormat; 3] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Bmp];

// What a single picture may cost. Several are decoded at once, so this is below what the
// decoders allow by themselves, yet above what cameras make.
const MAX_SIDE: u32 = 1 << 15;
const MAX_DECODED: u64 = 192 << 20;
const MAX_FILE: u64 = 256 << 20;
const MAX_RESIZED: u64 = 1 << 25;

/// A folder of pictures, or of one folder of pictures for each class.
struct Pictures {
    root: PathBuf,
    /// The folders; empty when the pictures lie in the root itself.
    classes: Vec<OsString>,
    /// The label of each folder: the number that it is called, where all are called numbers, else its place.
    numbers: Vec<i64>,
    is_numbered: bool,
    /// The place of the folder and the file name.
    files: Vec<(usize, OsString)>,
    colour: bool,
    preprocess: Option<Preprocess>,
}

/// Channels first, a byte for each.
struct Planes {
    height: usize,
    width: usize,
    bytes: Vec<u8>,
}

impl Pictures {
    /// The pictures in and below `root`; `None` when there are none at all.
    fn open(root: &Path, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Option<Self>> {
        let (folders, flat) = list(root)?;
        let mut files = Vec::new();
        let mut empty = None;
        for (class, folder) in folders.iter().enumerate() {
            let (_, pictures) = list(&root.join(folder))?;
            if pictures.is_empty() {
                empty.get_or_insert(folder);
            }
            files.extend(pictures.into_iter().map(|name| (class, name)));
        }
        let classes = match (files.is_empty(), flat.is_empty()) {
            (true, true) => return Ok(None),
            (true, false) => {
                files = flat.into_iter().map(|name| (0, name)).collect();
                Vec::new()
            }
            (false, false) => {
                return Err(Error::data("it has pictures both in itself and in folders of classes")
                    .help("move every picture into the folder of its class"));
            }
            (false, true) => folders.clone(),
        };
        // Leaving the folder out would silently shift the labels of the classes behind it.
        if let (Some(folder), false) = (empty, classes.is_empty()) {
            return Err(Error::data("the folder of a class has no png, jpg or bmp pictures")
                .in_file(root.join(folder))
                .help("every folder is a class: remove those that are not"));
        }
        let [spec] = inputs else {
            return Err(Error::data(format!("pictures feed one input, but the model has {}", inputs.len()))
                .help("give an .npz with an array named after each input"));
        };
        let colour = match spec.sizes()[..] {
            [_, None | Some(3), _, _] => true,
            [_, Some(1), _, _] => false,
            _ => {
                let axes: Vec<_> = spec.shape.iter().map(Dim::to_string).collect();
                return Err(Error::data(format!(
                    "pictures are [N, 3, height, width], or [N, 1, height, width] in grey, but \
                     `{}` is [{}]",
                    spec.name,
                    axes.join(", ")
                ))
                .help("prepare the data as the model needs it, and give it as an .npz"));
            }
        };
        let root = root.to_owned();
        let (numbers, is_numbered) = match numbered(&classes) {
            Some(numbers) => (numbers, true),
            None => ((0..).take(classes.len()).collect(), false),
        };
        let set = Self { root, classes, numbers, is_numbered, files, colour, preprocess: preprocess.cloned() };
        // Most mistakes show in the first picture already, long before the first batch.
        set.tensor(spec, &[0])?;
        Ok(Some(set))
    }

    fn path(&self, row: usize) -> PathBuf {
        let (class, name) = &self.files[row];
        match self.classes.get(*class) {
            Some(class) => self.root.join(class).join(name),
            None => self.root.join(name),
        }
    }

    /// The pictures of `rows`, which are not none, as a tensor for `spec`.
    fn tensor(&self, spec: &InputSpec, rows: &[usize]) -> Result<Tensor> {
        let channels = if self.colour { 3 } else { 1 };
        let (height, width) = match spec.sizes()[2..] {
            [Some(height), Some(width)] => (height, width),
            // All must become equal, so the first tells what the model leaves open.
            _ => {
                let path = self.path(rows[0]);
                let first = self.decode(&path).map_err(|e| e.in_file(&path))?;
                let shape = [channels, first.height, first.width];
                values::fit(spec, true, &shape).map_err(|e| e.in_file(&path))?;
                (first.height, first.width)
            }
        };
        let shape = [channels, height, width];
        let values = Values::new(spec, true, DType::U8, &shape, self.preprocess.as_ref(), true)?;
        let sample_bytes = values::size_of(spec.dtype, &shape)?;
        let mut out = values::room(rows.len(), sample_bytes)?;
        let one = |(out, row): (&mut [u8], &usize)| {
            let path = self.path(*row);
            let mut convert = || {
                let mut planes = self.decode(&path)?;
                if (planes.height, planes.width) != (height, width) {
                    return Err(Error::data(format!(
                        "the picture is {}x{}, but {width}x{height} is needed",
                        planes.width, planes.height
                    ))
                    .help(format!(
                        "let the preprocessing cut it to size, e.g. resize={0},crop={0}",
                        height.max(width)
                    )));
                }
                values.convert(&mut planes.bytes, out).map_err(Error::data)
            };
            convert().map_err(|e| e.in_file(&path))
        };
        // A model may declare a picture of no pixels, which leaves nothing to cut into chunks.
        out.par_chunks_mut(sample_bytes.max(1)).zip(rows).try_for_each(one)?;
        Tensor::new(spec.dtype, batch_shape(true, rows.len(), &shape), out)
    }

    fn decode(&self, path: &Path) -> Result<Planes> {
        let file = array::open(path)?;
        let size = file.metadata().map_err(|e| Error::file(e.to_string()))?.len();
        if size > MAX_FILE {
            return Err(Error::limit(format!("a picture of {size} bytes is too large")));
        }
        let mut reader = ImageReader::new(BufReader::new(file))
            .with_guessed_format()
            .map_err(|e| Error::file(format!("cannot be read: {e}")))?;
        if !reader.format().is_some_and(|format| DECODED.contains(&format)) {
            return Err(Error::data("it is not a PNG, JPEG or BMP picture, whatever its name says"));
        }
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE);
        limits.max_image_height = Some(MAX_SIDE);
        limits.max_alloc = Some(MAX_DECODED);
        reader.limits(limits);
        let picture = reader.decode().map_err(|e| match e {
            ImageError::Limits(_) => Error::limit(format!("the picture is too large: {e}")),
            e => Error::data(format!("the picture cannot be decoded: {e}")),
        })?;
        let picture = match self.colour {
            true => DynamicImage::ImageRgb8(picture.into_rgb8()),
            false => DynamicImage::ImageLuma8(picture.into_luma8()),
        };
        self.cut(picture)
    }

    /// Resizes and crops as asked.
    fn cut(&self, mut picture: DynamicImage) -> Result<Planes> {
        let asked = self.preprocess.as_ref();
        if let Some(side) = asked.and_then(|p| p.resize) {
            let (width, height) = (picture.width(), picture.height());
            let short = u64::from(width.min(height)).max(1);
            let scaled = |v: u32| u64::from(v) * side as u64 / short;
            let (w, h) = (scaled(width), scaled(height));
            let (Ok(w32), Ok(h32), true) = (w.try_into(), h.try_into(), w * h <= MAX_RESIZED) else {
                return Err(Error::limit(format!(
                    "the picture of {width}x{height} becomes {w}x{h} with resize={side}"
                )));
            };
            picture = picture.resize_exact(w32, h32, FilterType::Triangle);
        }
        if let Some(side) = asked.and_then(|p| p.crop) {
            let (width, height) = (picture.width(), picture.height());
            let side = u32::try_from(side).unwrap_or(u32::MAX);
            let (Some(left), Some(top)) = (width.checked_sub(side), height.checked_sub(side)) else {
                return Err(Error::data(format!("the picture is {width}x{height}, too small for crop={side}"))
                    .help("give a resize of at least the crop as well"));
            };
            picture = picture.crop_imm(left / 2, top / 2, side, side);
        }
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let pixels = picture.into_bytes();
        let channels = if self.colour { 3 } else { 1 };
        let bytes = (0..channels).flat_map(|c| pixels.iter().skip(c).step_by(channels).copied()).collect();
        Ok(Planes { height, width, bytes })
    }
}

/// The numbers that all folders are called, if they are, each another.
fn numbered(folders: &[OsString]) -> Option<Vec<i64>> {
    let number = |name: &OsString| name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?.parse().ok();
    let numbers: Vec<i64> = folders.iter().map(number).collect::<Option<_>>()?;
    (numbers.iter().collect::<HashSet<_>>().len() == numbers.len()).then_some(numbers)
}

/// A name in the parts by which people sort it: `class_2` comes before `class_10`.
fn by_number(name: &OsString) -> Vec<(Option<u64>, String)> {
    let name = name.to_string_lossy();
    let is_digit = |c: char| c.is_ascii_digit();
    let mut parts = vec![];
    let mut rest = &name[..];
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_digit(c) != is_digit(first)).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        parts.push((part.parse().ok(), part.to_string()));
        rest = behind;
    }
    parts
}

impl SampleSource for Pictures {
    fn are_pictures(&self) -> bool {
        true
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn stacks(&self) -> bool {
        true
    }

    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        inputs.iter().map(|spec| self.tensor(spec, rows)).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        (0..self.len()).map(|row| self.path(row)).collect()
    }

    fn is_labelled(&self) -> bool {
        !self.classes.is_empty()
    }

    fn labels(&self, rows: &[usize]) -> Result<Option<Vec<i64>>> {
        let all = || rows.iter().map(|row| self.numbers[self.files[*row].0]).collect();
        Ok(self.is_labelled().then(all))
    }

    fn named_classes(&self) -> Option<usize> {
        (self.is_labelled() && !self.is_numbered).then_some(self.classes.len())
    }

    fn file(&self, row: usize) -> Option<PathBuf> {
        Some(self.path(row))
    }
}

/// The names of the folders and pictures in `folder`, each sorted.
fn list(folder: &Path) -> Result<(Vec<OsString>, Vec<OsString>)> {
    let unreadable = |e| Error::file(format!("cannot be listed: {e}")).in_file(folder);
    let (mut folders, mut pictures) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        // Thumbnails, version control and the like are in nearly every folder.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if is_picture(Path::new(&name)) {
            pictures.push(name);
        } else if entry.path().is_dir() {
            folders.push(name);
        }
    }
    folders.sort_by_cached_key(by_number);
    pictures.sort();
    Ok((folders, pictures))
}

/// Whether the name is that of a picture we can read.
fn is_picture(path: &Path) -> bool {
    let extension = path.extension().map(|e| e.to_ascii_lowercase());
    extension.is_some_and(|e| ["png", "jpg", "jpeg", "bmp"].iter().any(|known| e == *known))
}

#[cfg(test)]
mod tests {
    use super::super::{Dataset, Preprocess, Reading, testing::spec};
    use compress_compiler::error::Kind;
    use image::{GrayImage, Rgb, RgbImage};
    use std::fs;

    #[test]
    fn folders_are_classes_and_pictures_become_planes() {
        let dir = tempfile::tempdir().unwrap();
        for (class, level) in [("cat", 255), ("ant", 51)] {
            fs::create_dir(dir.path().join(class)).unwrap();
            let picture = RgbImage::from_pixel(4, 2, Rgb([level, 0, 102]));
            picture.save(dir.path().join(class).join("one.png")).unwrap();
        }
        let specs = [spec("x", &[None, Some(3), Some(2), Some(4)])];
        let set = Dataset::open(dir.path(), &specs, &Reading::default()).unwrap();
        assert_eq!((set.len(), set.is_labelled()), (2, true));
        let batch = set.batch(&[1, 0]).unwrap();
        assert_eq!(batch.labels, Some(vec![1, 0]));
        assert_eq!(batch.inputs[0].shape(), [2, 3, 2, 4]);
        let values = batch.inputs[0].as_f32().unwrap();
        assert_eq!((values[0], values[8], values[16], values[24]), (1.0, 0.0, 0.4, 0.2));

        let bgr: Preprocess = "scale=1,bgr,mean=2:0:55".parse().unwrap();
        let set = Dataset::open(dir.path(), &specs, &bgr.clone().into()).unwrap();
        let batch = set.batch(&[1]).unwrap();
        let values = batch.inputs[0].as_f32().unwrap();
        assert_eq!((values[0], values[8], values[16]), (100.0, 0.0, 200.0));

        let digest = set.digest().unwrap();
        fs::rename(dir.path().join("ant/one.png"), dir.path().join("cat/two.png")).unwrap();
        let e = Dataset::open(dir.path(), &specs, &Reading::default()).err().unwrap();
        assert!(e.to_string().contains("ant"), "{e}");
        fs::remove_dir(dir.path().join("ant")).unwrap();
        let moved = Dataset::open(dir.path(), &specs, &Reading::default()).unwrap();
        assert_ne!(digest, moved.digest().unwrap());
    }

    #[test]
    fn a_flat_folder_has_no_labels_and_sizes_are_made_to_fit() {
        let dir = tempfile::tempdir().unwrap();
        let ramp = GrayImage::from_fn(16, 8, |x, _| image::Luma([x as u8]));
        ramp.save(dir.path().join("a.bmp")).unwrap();
        RgbImage::new(9, 30).save(dir.path().join("b.jpg")).unwrap();
        fs::write(dir.path().join("notes.txt"), "none").unwrap();
        let specs = [spec("x", &[Some(1), Some(1), Some(4), Some(4)])];
        let e = Dataset::open(dir.path(), &specs, &Reading::default()).err().unwrap();
        assert!(e.to_string().contains("16x8, but 4x4"), "{e}");

        let cut: Preprocess = "resize=4,crop=4".parse().unwrap();
        let set = Dataset::open(dir.path(), &specs, &cut.clone().into()).unwrap();
        assert_eq!((set.len(), set.is_labelled()), (2, false));
        assert_eq!(set.batch(&[0, 1]).unwrap().inputs[0].shape(), [2, 1, 4, 4]);

        let free = [spec("x", &[None, None, None, None])];
        let set = Dataset::open(dir.path(), &free, &Reading::default()).unwrap();
        assert_eq!(set.batch(&[1]).unwrap().inputs[0].shape(), [1, 3, 30, 9]);
        assert_eq!(set.batch(&[0, 1]).err().unwrap().kind(), Kind::Data);

        fs::write(dir.path().join("c.png"), "no picture").unwrap();
        let set = Dataset::open(dir.path(), &free, &Reading::default()).unwrap();
        let e = set.batch(&[2]).err().unwrap();
        assert!(e.to_string().contains("c.png"), "{e}");
        let last = [spec("x", &[None, Some(4), Some(4), Some(3)])];
        assert!(Dataset::open(dir.path(), &last, &Reading::default()).is_err());
    }
}
