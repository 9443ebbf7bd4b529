//! TCP segmentation: one request becomes as many frames as its bytes need (IBV_WR_TSO, ibv_wr_send_tso(3)).

use super::segment::finish;
use ferroce_types::{Result, invalid};
use ferroce_wire::frame::{ETHERNET_LEN, Frame, IpLayer, Layer, Transport};

/// Bytes that one request may have segmented.
pub const MAX_TSO: u32 = 256 << 10;
/// Bytes of headers that it may bring: Ethernet, IP with options, and TCP.
pub(crate) const MAX_TSO_HEADER: u16 = 512;

/// How bytes become TCP segments: the headers of the first, and how many bytes each has.
#[derive(Clone, Debug)]
pub struct Tso {
    header: Box<[u8]>,
    layer: Layer,
    mss: u16,
}

impl Tso {
    /// Lengths and checksums in `header` count for nothing: each segment gets its own. An IPv4 identification counts up
    /// from segment to segment; CWR is for the first, FIN and PSH are for the last.
    ///
    /// # Errors
    /// [`Error::Invalid`](ferroce_types::Error::Invalid) when `header` isn't Ethernet, IPv4 or IPv6, and TCP, in full and nothing
    /// else, or `mss` is 0.
    pub fn new(header: &[u8], mss: u16) -> Result<Self> {
        let mut header: Box<[u8]> = header.into();
        let Some(Layer { network: Some(network), network_at, .. }) = Frame::parse(&header).map(|f| f.outer)
        else {
            return invalid!("a header of {} bytes to segment holds no IP header", header.len());
        };
        // The length of this header alone makes it a packet in which TCP can be found.
        let length = header.len() - network_at;
        match network {
            IpLayer::V4 { .. } => {
                header[network_at + 2..][..2].copy_from_slice(&(length as u16).to_be_bytes());
            }
            IpLayer::V6 { .. } => {
                header[network_at + 4..][..2]
                    .copy_from_slice(&(length.saturating_sub(40) as u16).to_be_bytes());
            }
        }
        let layer = Frame::parse(&header).map(|f| f.outer).unwrap_or_default();
        let tcp = matches!(layer.transport, Some(Transport::Tcp { .. }));
        let ends = header.get(layer.transport_at + 12).map(|b| layer.transport_at + usize::from(b >> 4) * 4);
        if !tcp || ends != Some(header.len()) || mss == 0 {
            return invalid!("{} bytes that don't end with TCP's header, or an mss of {mss}", header.len());
        }
        Ok(Self { header, layer, mss })
    }

    /// Bytes of the headers.
    pub(super) fn header_len(&self) -> usize {
        self.header.len()
    }

    /// Bytes of the Ethernet header with a VLAN tag, which don't count as the interface's payload.
    pub(super) fn ethernet_len(&self) -> usize {
        ETHERNET_LEN + if self.layer.ethernet.is_some_and(|ethernet| ethernet.vlan.is_some()) { 4 } else { 0 }
    }

    /// Segments that so many bytes make.
    pub(super) fn count(&self, payload: usize) -> usize {
        payload.div_ceil(self.mss.into()).max(1)
    }

    /// Of so many bytes, where those of segment `index` begin, and how many they are.
    pub(super) fn part(&self, payload: usize, index: usize) -> (usize, usize) {
        let mss = usize::from(self.mss);
        let offset = index * mss;
        (offset, mss.min(payload - offset))
    }

    /// Writes the headers of segment `index`, whose bytes `frame` has behind them.
    pub(super) fn write(&self, frame: &mut [u8], payload: usize, index: usize) {
        frame[..self.header.len()].copy_from_slice(&self.header);
        let offset = index * usize::from(self.mss);
        finish(frame, &self.layer, index, offset, index + 1 == self.count(payload));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 and TCP, with lengths that mean nothing.
    fn header() -> Vec<u8> {
        let mut header = vec![2; 12];
        header
            .extend_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        header.extend_from_slice(&[0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        header
    }

    #[test]
    fn only_tcp_in_full_can_be_segmented() {
        assert!(Tso::new(&header(), 1000).is_ok());
        assert!(Tso::new(&header(), 0).is_err());
        assert!(Tso::new(&header()[..53], 1000).is_err());
        assert!(Tso::new(&[&header()[..], &[0; 4]].concat(), 1000).is_err());
        assert!(Tso::new(&[], 1000).is_err());
        for (at, value) in [(12, 9), (23, 17), (14, 0x65), (21, 1), (46, 0x60)] {
            let mut wrong = header();
            wrong[at] = value;
            assert!(Tso::new(&wrong, 1000).is_err(), "byte {at}");
        }
    }

    #[test]
    fn parts_cover_all_bytes_once() {
        let tso = Tso::new(&header(), 400).unwrap();
        assert_eq!((tso.count(0), tso.part(0, 0)), (1, (0, 0)));
        assert_eq!(tso.count(800), 2);
        let parts: Vec<_> = (0..tso.count(1000)).map(|index| tso.part(1000, index)).collect();
        assert_eq!(parts, [(0, 400), (400, 400), (800, 200)]);
    }
}
