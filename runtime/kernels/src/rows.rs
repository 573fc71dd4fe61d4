//! Rows of elements: the form in which every kernel takes its operands.

/// Rows of `width` elements each, whose beginnings lie `stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, T> {
    data: &'a [T],
    rows: usize,
    width: usize,
    stride: usize,
}

/// [`Rows`] to be written.
#[derive(Debug)]
pub struct RowsMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    width: usize,
    stride: usize,
}

/// The elements from the first to the last of the rows.
///
/// # Panics
/// When rows overlap, or their number leaves the range of `usize`.
fn extent(rows: usize, width: usize, stride: usize) -> usize {
    assert!(width <= stride || rows <= 1, "rows of {width} elements are {stride} apart");
    match rows.checked_sub(1) {
        None => 0,
        Some(last) => last.checked_mul(stride).and_then(|n| n.checked_add(width)).expect("an extent within usize"),
    }
}

impl<'a, T> Rows<'a, T> {
    /// `rows` rows in `data`, which may go on behind them.
    ///
    /// # Panics
    /// When `data` is too short, or rows overlap.
    pub fn new(data: &'a [T], rows: usize, width: usize, stride: usize) -> Self {
        let data = &data[..extent(rows, width, stride)];
        Self { data, rows, width, stride }
    }

    /// Rows that follow each other without a gap.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn dense(data: &'a [T], rows: usize, width: usize) -> Self {
        Self::new(data, rows, width, width)
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements from the beginning of a row to that of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The elements from the first row's first to the last row's last, gaps included.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// A row.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn row(&self, i: usize) -> &'a [T] {
        &self.data[i * self.stride..][..self.width]
    }

    /// `n` rows from row `first`.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn part(&self, first: usize, n: usize) -> Self {
        assert!(first + n <= self.rows, "rows {first}..{} of {}", first + n, self.rows);
        Self::new(self.data.get(first * self.stride..).unwrap_or(&[]), n, self.width, self.stride)
    }

    /// `width` columns from column `first` of every row.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn columns(&self, first: usize, width: usize) -> Self {
        assert!(first + width <= self.width, "columns {first}..{} of {}", first + width, self.width);
        Self::new(self.data.get(first..).unwrap_or(&[]), self.rows, width, self.stride)
    }

    /// Whether the rows follow each other without a gap.
    pub fn is_dense(&self) -> bool {
        self.stride == self.width || self.rows <= 1
    }
}

impl<'a, T> RowsMut<'a, T> {
    /// `rows` rows in `data`, which may go on behind them.
    ///
    /// # Panics
    /// When `data` is too short, or rows overlap.
    pub fn new(data: &'a mut [T], rows: usize, width: usize, stride: usize) -> Self {
        let data = &mut data[..extent(rows, width, stride)];
        Self { data, rows, width, stride }
    }

    /// Rows that follow each other without a gap.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn dense(data: &'a mut [T], rows: usize, width: usize) -> Self {
        Self::new(data, rows, width, width)
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements from the beginning of a row to that of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The elements from the first row's first to the last row's last, gaps included.
    pub fn data(&mut self) -> &mut [T] {
        self.data
    }

    /// A row.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn row(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.stride..][..self.width]
    }

    /// The same rows, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> RowsMut<'_, T> {
        RowsMut { data: self.data, rows: self.rows, width: self.width, stride: self.stride }
    }

    /// `width` columns from column `first` of every row.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn columns(&mut self, first: usize, width: usize) -> RowsMut<'_, T> {
        assert!(first + width <= self.width, "columns {first}..{} of {}", first + width, self.width);
        RowsMut::new(self.data.get_mut(first..).unwrap_or(&mut []), self.rows, width, self.stride)
    }

    /// The first `n` rows, and the others.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn split_at(self, n: usize) -> (RowsMut<'a, T>, RowsMut<'a, T>) {
        assert!(n <= self.rows, "{n} of {} rows", self.rows);
        let at = (n * self.stride).min(self.data.len());
        let (a, b) = self.data.split_at_mut(at);
        (RowsMut::new(a, n, self.width, self.stride), RowsMut::new(b, self.rows - n, self.width, self.stride))
    }

    /// Whether the rows follow each other without a gap.
    pub fn is_dense(&self) -> bool {
        self.stride == self.width || self.rows <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_with_their_last_element() {
        let data: Vec<u8> = (0..11).collect();
        let rows = Rows::new(&data, 3, 3, 4);
        assert_eq!(rows.row(2), [8, 9, 10]);
        assert_eq!(rows.columns(2, 1).row(1), [6]);
        assert_eq!(rows.part(1, 2).row(0), [4, 5, 6]);
        assert_eq!(rows.part(3, 0).rows(), 0);
        let mut data = data;
        let (mut a, mut b) = RowsMut::new(&mut data, 3, 3, 4).split_at(2);
        (a.row(1)[0], b.row(0)[2]) = (77, 99);
        assert_eq!((data[4], data[10]), (77, 99));
    }

    #[test]
    #[should_panic]
    fn data_that_is_too_short_is_refused() {
        Rows::new(&[0u8; 10], 3, 3, 4);
    }
}
