//! What a device reports besides completions.

/// What has happened to a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A shared receive queue, by its number, has fewer receives than its low-water mark.
    LowWater(u32),
    /// The port can carry packets.
    PortActive,
    /// The port can't carry packets.
    PortDown,
    /// The device has other addresses than before.
    AddressesChanged,
    /// The device is gone, or has failed: no request on it ends any more but by a flush.
    DeviceFailed,
}
