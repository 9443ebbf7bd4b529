//! The packets of a capture: a file of pcapng or pcap, which may still be written.

use super::packet::{CapturedPacket, PacketDirection};
use crate::progress::ProgressLine;
use ferroce_doctor::path_error;
use pcap_parser::pcapng::{Block, EnhancedPacketBlock, InterfaceDescriptionBlock, OptionCode};
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

/// Longer than any packet, with what surrounds it.
const BUFFER: usize = 1 << 20;
/// How often a file that is being written is looked at.
const LOOK: Duration = Duration::from_millis(50);

const ETHERTYPES_OF_IP: [u16; 2] = [0x0800, 0x86dd];

/// Gives `take` each packet, until that has enough; with `follow`, also those that are written later.
///
/// # Errors
/// The file can't be read or isn't a capture, or what `take` returns.
pub fn read(
    file: &Path,
    follow: bool,
    mut take: impl FnMut(&CapturedPacket, &mut ProgressLine) -> Result<ControlFlow<()>, String>,
) -> Result<(), String> {
    let opened = File::open(file).map_err(|error| path_error(file, &error))?;
    // Of a pipe, or of a file that is waited at, the end isn't known.
    let length = opened.metadata().ok().filter(|of| of.is_file() && !follow).map_or(0, |of| of.len());
    let mut reading = ProgressLine::of(length);
    let mut reader =
        create_reader(BUFFER, Growing { file: opened, follow }).map_err(|error| match error {
            PcapError::Eof => "it is empty".to_owned(),
            _ => "it isn't a capture (pcapng or pcap)".to_owned(),
        })?;
    let mut decoder = Decoder::default();
    loop {
        match reader.next() {
            Ok((length, block)) => {
                let packet = decoder.block(&block);
                reader.consume(length);
                reading.advance(length as u64);
                if let Some(packet) = packet
                    && take(&packet, &mut reading)?.is_break()
                {
                    return Ok(());
                }
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::Incomplete(_)) => reader.refill().map_err(|error| error.to_string())?,
            // A process that was killed may have left half a block.
            Err(PcapError::UnexpectedEof) => return Err("its last block isn't whole".to_owned()),
            Err(_) => return Err("a block of it makes no sense".to_owned()),
        }
    }
}

/// A file whose end is waited at.
struct Growing {
    file: File,
    follow: bool,
}

impl Read for Growing {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.file.read(bytes)?;
            if read > 0 || !self.follow || bytes.is_empty() {
                return Ok(read);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Blocks in, packets out.
#[derive(Default)]
struct Decoder {
    interfaces: Vec<CaptureInterface>,
    /// When the first packet came, in nanoseconds.
    first: Option<u64>,
}

#[derive(Clone, Copy)]
struct CaptureInterface {
    link: Linktype,
    /// Units of its clock in a second.
    resolution: u64,
}

impl Decoder {
    fn block(&mut self, block: &PcapBlockOwned<'_>) -> Option<CapturedPacket> {
        match block {
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                self.interfaces.push(CaptureInterface::of(interface));
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let interface = *self.interfaces.get(packet.if_id as usize)?;
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let at = (u128::from(ticks) * 1_000_000_000 / u128::from(interface.resolution.max(1))) as u64;
                return self.packet(interface.link, at, way_of(packet), packet.data);
            }
            PcapBlockOwned::LegacyHeader(header) => {
                let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
                self.interfaces = vec![CaptureInterface { link: header.network, resolution }];
            }
            PcapBlockOwned::Legacy(packet) => {
                let CaptureInterface { link, resolution } = *self.interfaces.first()?;
                // In units of its clock, whatever the parser calls it.
                let fraction = u64::from(packet.ts_usec) * (1_000_000_000 / resolution);
                let at = u64::from(packet.ts_sec) * 1_000_000_000 + fraction;
                return self.packet(link, at, PacketDirection::Unknown, packet.data);
            }
            PcapBlockOwned::NG(_) => {}
        }
        None
    }

    fn packet(
        &mut self,
        link: Linktype,
        at: u64,
        way: PacketDirection,
        bytes: &[u8],
    ) -> Option<CapturedPacket> {
        let packet = match link {
            Linktype::ETHERNET => {
                let kind = u16::from_be_bytes(*bytes.get(12..14)?.first_chunk()?);
                ETHERTYPES_OF_IP.contains(&kind).then_some(())?;
                bytes.get(14..)?
            }
            Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => bytes,
            _ => return None,
        };
        let since = at.saturating_sub(*self.first.get_or_insert(at));
        CapturedPacket::of(since as f64 / 1e9, way, packet)
    }
}

impl CaptureInterface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        Self { link: block.linktype, resolution: block.ts_resolution().unwrap_or(1_000_000) }
    }
}

/// The direction in epb_flags (pcapng, section 4.3.1).
fn way_of(packet: &EnhancedPacketBlock<'_>) -> PacketDirection {
    let flags = packet.options.iter().find(|option| option.code == OptionCode(2));
    match flags.and_then(|option| option.value.first().copied()).map(|byte| byte & 3) {
        Some(1) => PacketDirection::In,
        Some(2) => PacketDirection::Out,
        _ => PacketDirection::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_parser::LegacyPcapBlock;
    use pcap_parser::pcap::parse_pcap_header;

    #[test]
    fn packets_of_a_classic_capture_have_the_times_of_its_clock() {
        for (magic, fraction) in [(0xa1b2_c3d4_u32, 250_000), (0xa1b2_3c4d, 250_000_000)] {
            let mut header = vec![0; 24];
            header[..4].copy_from_slice(&magic.to_le_bytes());
            header[20] = 101;
            let (_, header) = parse_pcap_header(&header).unwrap();
            let mut decoder = Decoder::default();
            decoder.block(&PcapBlockOwned::LegacyHeader(header));
            let packet = crate::trace::packet::tests::send_only();
            let mut at = |ts_sec, ts_usec| {
                let len = packet.len() as u32;
                let block = LegacyPcapBlock { ts_sec, ts_usec, caplen: len, origlen: len, data: &packet };
                decoder.block(&PcapBlockOwned::Legacy(block)).unwrap().at
            };
            assert_eq!((at(7, 0), at(8, fraction)), (0.0, 1.25), "{magic:#x}");
        }
    }
}
