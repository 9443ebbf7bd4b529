//! Where processes of the host look up the regions that they reach without packets.

use super::rights::MrInit;
use ferroce_types::Result;
use std::sync::OnceLock;

static LISTING: OnceLock<&'static dyn RegionListing> = OnceLock::new();

/// A list of regions by key that other processes read. The table of keys keeps it up to date; the list decides which
/// regions it has room for.
///
/// All functions may be called under the lock of the table of keys or of a region's gate, so they take no lock that comes
/// before those.
pub trait RegionListing: Sync {
    /// Lists a region of protection domain `pd`, or lists it anew after [`RegionListing::revoke`]. `shared`: processes can map
    /// what it lies in.
    fn publish(&self, key: u32, pd: u32, init: &MrInit, shared: bool);

    /// Takes a region out of the list. When this returns, no other process accesses the region. Called without a lock, as it
    /// may wait.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] when another process doesn't end its access within a second; the region is listed as before then.
    fn revoke(&self, key: u32) -> Result<()>;

    /// As [`RegionListing::revoke`], where no other process can be accessing the region: it doesn't wait.
    fn withdraw(&self, key: u32);
}

/// The list of this process; `None` before [`set_listing`].
pub(crate) fn listing() -> Option<&'static dyn RegionListing> {
    LISTING.get().copied()
}

/// Makes `listing` the list of this process, unless it has one.
pub(crate) fn set_listing(listing: &'static dyn RegionListing) {
    LISTING.get_or_init(|| listing);
}
