//! The slots of a shared receive queue: its receives end in any order.

/// A number consists of a place (low bits) and of how often the place was used before.
const PLACE_BITS: u32 = 16;

/// The longest shelf.
pub const MAX_SHELF: u32 = 1 << PLACE_BITS;

struct Place<T> {
    uses: u16,
    entry: Option<T>,
}

/// Entries that are taken out by their numbers. A number comes again after 2^16 entries in the same place.
pub struct Shelf<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Shelf<T> {
    /// A shelf for `depth` entries.
    ///
    /// # Panics
    /// `depth` is more than [`MAX_SHELF`].
    #[must_use]
    pub fn new(depth: u32) -> Self {
        assert!(depth <= MAX_SHELF, "a shelf of {depth} entries");
        let places = (0..depth).map(|_| Place { uses: 0, entry: None }).collect();
        Self { places, free: (0..depth).rev().collect() }
    }

    /// Entries that can be added now.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.free.len() as u32
    }

    /// Adds an entry, and returns its number.
    ///
    /// # Errors
    /// The shelf is full: the entry comes back.
    pub fn push(&mut self, entry: T) -> Result<u32, T> {
        let Some(at) = self.free.pop() else { return Err(entry) };
        let place = &mut self.places[at as usize];
        place.entry = Some(entry);
        Ok(u32::from(place.uses) << PLACE_BITS | at)
    }

    fn find(&self, number: u32) -> Option<usize> {
        let at = (number & (MAX_SHELF - 1)) as usize;
        let place = self.places.get(at)?;
        (place.entry.is_some() && u32::from(place.uses) == number >> PLACE_BITS).then_some(at)
    }

    /// Whether the entry with this number is on the shelf. A completion whose number isn't is stale or forged.
    #[must_use]
    pub fn is_outstanding(&self, number: u32) -> bool {
        self.find(number).is_some()
    }

    /// Takes the entry with this number out.
    pub fn take(&mut self, number: u32) -> Option<T> {
        let at = self.find(number)?;
        let place = &mut self.places[at];
        place.uses = place.uses.wrapping_add(1);
        self.free.push(at as u32);
        place.entry.take()
    }

    /// Takes any entry out.
    pub fn pop(&mut self) -> Option<T> {
        let at = self.places.iter().position(|place| place.entry.is_some())?;
        let number = u32::from(self.places[at].uses) << PLACE_BITS | at as u32;
        self.take(number)
    }
}
