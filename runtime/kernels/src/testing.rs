//! Memory that ends where a page begins that must not be touched.

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ops::{Deref, DerefMut};

/// A copy of a slice, directly behind which reading or writing kills the process.
pub struct Guarded<T: Copy> {
    base: *mut core::ffi::c_void,
    bytes: usize,
    first: *mut T,
    len: usize,
}

impl<T: Copy> Guarded<T> {
    /// Copies `data`.
    pub fn new(data: &[T]) -> Self {
        let page = rustix::param::page_size();
        let used = size_of_val(data).next_multiple_of(page);
        let bytes = used + page;
        // SAFETY: a fresh private mapping; the last page is made untouchable, and the data is
        // written so that it ends directly before it, which keeps its alignment as a page is a
        // multiple of it.
        unsafe {
            let base =
                mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                    .expect("a mapping");
            mprotect(base.byte_add(used), page, MprotectFlags::empty()).expect("a page is protected");
            let first: *mut T = base.byte_add(used - size_of_val(data)).cast();
            core::ptr::copy_nonoverlapping(data.as_ptr(), first, data.len());
            Self { base, bytes, first, len: data.len() }
        }
    }
}

impl<T: Copy> Deref for Guarded<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote these elements, and the mapping lives as long as this.
        unsafe { core::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T: Copy> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T: Copy> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody can borrow any more.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}
