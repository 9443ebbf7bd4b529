//! Lists regions in this process's directory, where other processes of the host look them up.

use ferroce_access::pages;
use ferroce_hostlink::{ListedRegion, own_directory, revoke_region, withdraw_region};
use ferroce_mem::{MrAccess, MrInit, RegionListing};
use ferroce_types::Result;

/// The regions that this process's directory lists, if it has one.
pub(crate) struct ListedRegions;

impl RegionListing for ListedRegions {
    fn publish(&self, key: u32, pd: u32, init: &MrInit, shared: bool) {
        if let Some(own) = own_directory() {
            let &MrInit { addr, length, iova, access: MrAccess { remote_read, remote_write, .. } } = init;
            let of_file = pages::may_be_of_file(addr, addr.saturating_add(length));
            let region = ListedRegion { pd, addr, iova, length, remote_read, remote_write, shared, of_file };
            own.publish_region(key, &region);
        }
    }

    fn revoke(&self, key: u32) -> Result<()> {
        revoke_region(key)
    }

    fn withdraw(&self, key: u32) {
        withdraw_region(key);
    }
}
