//! Memory in pieces (`struct iovec`) that is sent, or received into, as if it were one.

/// `length` bytes at `at`, which isn't written to.
pub fn piece_at(at: *const u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: length }
}

/// What is left of some pieces, run by run.
pub struct Runs<'a> {
    pieces: &'a [libc::iovec],
    /// Bytes of the first piece that are done.
    done: usize,
}

impl<'a> Runs<'a> {
    /// All but the first `done` bytes of `pieces`.
    pub fn behind(pieces: &'a [libc::iovec], done: usize) -> Self {
        let mut this = Self { pieces, done: 0 };
        this.skip(done);
        this
    }

    /// Leaves out the next `bytes` bytes, and pieces that have none.
    pub fn skip(&mut self, mut bytes: usize) {
        while let Some((first, rest)) = self.pieces.split_first() {
            let left = first.iov_len - self.done;
            if bytes < left {
                self.done += bytes;
                return;
            }
            bytes -= left;
            (self.pieces, self.done) = (rest, 0);
        }
    }

    /// The first piece that has anything left, as an address and a length.
    pub fn run(&self) -> Option<(*const u8, usize)> {
        let first = self.pieces.first()?;
        Some((first.iov_base.cast::<u8>().wrapping_add(self.done).cast_const(), first.iov_len - self.done))
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.pieces.iter().map(|piece| piece.iov_len).sum::<usize>() - self.done
    }

    /// Gives the next `length` bytes, which are there, to `each`: run after run, each with the bytes that came before it.
    pub fn take(&mut self, length: usize, mut each: impl FnMut(usize, *const u8, usize)) {
        let mut taken = 0;
        while taken < length {
            let Some((from, run)) = self.run() else { return };
            let run = run.min(length - taken);
            each(taken, from, run);
            taken += run;
            self.skip(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(of: &[&str]) -> Vec<libc::iovec> {
        of.iter().map(|text| piece_at(text.as_ptr(), text.len())).collect()
    }

    fn text(runs: &mut Runs<'_>, length: usize) -> String {
        let mut bytes = Vec::new();
        runs.take(length, |before, from, run| {
            assert_eq!(before, bytes.len());
            // SAFETY: of a string of this test.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, run) });
        });
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn pieces_are_taken_as_one_from_anywhere() {
        let pieces = pieces(&["", "ab", "", "c", "defg", ""]);
        for done in 0..=7 {
            for first in 0..=7 - done {
                let mut runs = Runs::behind(&pieces, done);
                assert_eq!(runs.left(), 7 - done);
                assert_eq!(text(&mut runs, first), "abcdefg"[done..done + first]);
                assert_eq!(runs.left(), 7 - done - first);
                assert_eq!(text(&mut runs, 7), "abcdefg"[done + first..]);
                assert!(runs.run().is_none());
            }
        }
    }
}
