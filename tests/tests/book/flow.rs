//! A picture of messages: what a capture has between the side that has captured and the other.

use ferroce_tests::svg::Svg;
use ferroce_wire::cm::Mad;
use ferroce_wire::{Headers, NakCode, Operation, Packet, Service, Syndrome};
use std::path::Path;

const ACK: &str = "ACK";
const PSN: &str = "PSN ";
const REQUEST: &str = "REQ";
/// To which the connection manager's messages go.
const MANAGERS_QPN: u32 = 1;
/// Pictures of programs that post several requests at once.
const BATCHES: [&str; 1] = ["polling.svg"];

/// A packet of the picture.
#[derive(PartialEq, Eq, Debug)]
struct Arrow {
    /// From the side that has captured.
    leaves: bool,
    what: String,
    detail: String,
}

impl Arrow {
    /// Drops the PSN: the connection manager draws the first at random.
    fn forget_number(&mut self) {
        if self.detail.starts_with(PSN) {
            self.detail.clear();
        }
    }
}

/// Fails when the picture isn't that of the capture. With FERROCE_WRITE_PAGES it becomes that.
pub fn compare(capture: &Path, picture: &Path) {
    let bytes = std::fs::read(capture).unwrap_or_else(|error| panic!("{}: {error}", capture.display()));
    let mut arrows = arrows(&bytes);
    if BATCHES.iter().any(|name| picture.ends_with(name)) {
        arrows = without_early_acknowledgements(arrows);
    }
    if arrows.iter().any(|arrow| arrow.detail == meaning(REQUEST)) {
        arrows.iter_mut().for_each(Arrow::forget_number);
    }
    let drawn = draw(&arrows);
    if std::env::var_os("FERROCE_WRITE_PAGES").is_some() {
        std::fs::write(picture, &drawn).expect("the picture can be written");
    }
    let there = std::fs::read_to_string(picture).unwrap_or_default();
    let why = "isn't what was captured: run this test with FERROCE_WRITE_PAGES=1, and look at the difference";
    assert!(drawn == there, "{} {why}:\n{drawn}", picture.display());
}

/// The packets of a capture in their order; one that was sent again counts once.
fn arrows(file: &[u8]) -> Vec<Arrow> {
    let mut arrows: Vec<Arrow> = Vec::new();
    let mut rest = file;
    while let Some((kind, body, after)) = block(rest) {
        rest = after;
        // An enhanced packet block: interface, time, lengths, the packet, options.
        if kind != 6 {
            continue;
        }
        let captured = number(body, 12) as usize;
        let (packet, options) = body[20..].split_at(captured.next_multiple_of(4));
        // The first option is epb_flags.
        let leaves = number(options, 4) & 3 == 2;
        let Some(arrow) = arrow(&packet[..captured], leaves) else { continue };
        if !arrows.contains(&arrow) {
            arrows.push(arrow);
        }
    }
    arrows
}

/// Which of several messages are acknowledged by themselves is a matter of time. The last ACK of a run is there in any case.
fn without_early_acknowledgements(arrows: Vec<Arrow>) -> Vec<Arrow> {
    let early = |index: usize, arrow: &Arrow| {
        let mut others = arrows[index + 1..].iter().filter(|other| other.leaves == arrow.leaves);
        arrow.what == ACK && others.next().is_some_and(|next| next.what == ACK)
    };
    let early: Vec<bool> = arrows.iter().enumerate().map(|(index, arrow)| early(index, arrow)).collect();
    arrows.into_iter().zip(early).filter(|(_, early)| !early).map(|(arrow, _)| arrow).collect()
}

#[test]
fn of_several_acknowledgements_the_last_is_drawn() {
    let arrow = |leaves, what: &str, psn: u32| Arrow { leaves, what: what.into(), detail: psn.to_string() };
    let sends = [arrow(true, "SEND", 1), arrow(true, "SEND", 2)];
    let [first, second] = sends;
    let all = vec![first, arrow(false, ACK, 1), second, arrow(false, ACK, 2), arrow(false, "SEND", 1)];
    let drawn = without_early_acknowledgements(all);
    assert_eq!(drawn.iter().map(|arrow| &*arrow.what).collect::<Vec<_>>(), ["SEND", "SEND", ACK, "SEND"]);
    assert_eq!(drawn[2].detail, "2");
}

/// Type and body of the first block of a pcapng file, and what comes behind it.
fn block(file: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let length = number(file.get(..8)?, 4) as usize;
    Some((number(file, 0), file.get(8..length.checked_sub(4)?)?, file.get(length..)?))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A RoCEv2 packet, from its IPv4 header on.
fn arrow(bytes: &[u8], leaves: bool) -> Option<Arrow> {
    const UDP_LEN: usize = 8;
    let header = usize::from(bytes.first()? & 0x0f) * 4;
    let Packet { headers, payload } = Packet::parse(bytes.get(header + UDP_LEN..)?).ok()?;
    if headers.bth.dest_qp == MANAGERS_QPN {
        let message = Mad::parse(payload).ok()?.message.name();
        return Some(Arrow { leaves, what: message.into(), detail: meaning(message).into() });
    }
    let datagram = headers.bth.opcode.service == Service::Ud;
    let psn = if datagram { String::new() } else { format!("{PSN}{}", headers.bth.psn) };
    Some(Arrow { leaves, what: what(&headers, payload.len()), detail: psn })
}

/// What a message of the connection manager is for.
fn meaning(message: &str) -> &'static str {
    match message {
        REQUEST => "request to connect",
        "REP" => "reply: accepted",
        "RTU" => "ready to use",
        "DREQ" => "request to disconnect",
        "DREP" => "reply: disconnected",
        _ => "",
    }
}

fn what(headers: &Headers, len: usize) -> String {
    use Operation as O;
    match headers.bth.opcode.operation {
        O::SendOnly => format!("SEND, {len} bytes"),
        O::SendOnlyWithImmediate => format!("SEND with immediate, {len} bytes"),
        O::WriteOnly => format!("RDMA WRITE, {len} bytes"),
        O::WriteOnlyWithImmediate => format!("RDMA WRITE with immediate, {len} bytes"),
        O::ReadRequest => format!("RDMA READ, {} bytes", headers.reth.map_or(0, |reth| reth.dma_len)),
        O::ReadResponseOnly => format!("READ response, {len} bytes"),
        O::FetchAdd => "fetch and add".into(),
        O::CompareSwap => "compare and swap".into(),
        O::AtomicAcknowledge => "atomic ACK".into(),
        O::Acknowledge => match headers.aeth.map(|aeth| Syndrome::from_u8(aeth.syndrome)) {
            Some(Syndrome::Nak(NakCode::RemoteAccessError)) => "NAK: remote access error".into(),
            Some(Syndrome::Ack { .. }) => ACK.into(),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    }
}

const WIDTH: usize = 560;
/// Where the two sides' lines are.
const SIDES: [usize; 2] = [90, 470];
const TOP: usize = 70;
const STEP: usize = 56;
/// How far an arrow falls on its way.
const FALL: usize = 16;

fn draw(arrows: &[Arrow]) -> String {
    let bottom = TOP + arrows.len() * STEP;
    let [left, right] = SIDES;
    let (height, middle) = (bottom + 20, WIDTH / 2);
    let mut svg = Svg::default();
    svg.raw(
        "<defs><marker id=\"tip\" markerWidth=\"9\" markerHeight=\"8\" refX=\"9\" refY=\"4\" orient=\"auto\">\
         <path d=\"M0 0L9 4L0 8z\" fill=\"#36506b\"/></marker></defs>",
    );
    for (x, name) in [(left, "client"), (right, "server")] {
        svg.text(x, 30, "font-weight=\"bold\"", name);
        svg.shape("path", format_args!("d=\"M{x} 42V{bottom}\" stroke=\"#999\" stroke-width=\"2\""));
    }
    for (index, arrow) in arrows.iter().enumerate() {
        let (from, to) = if arrow.leaves { (left, right) } else { (right, left) };
        let y = TOP + index * STEP;
        let path = format_args!("d=\"M{from} {y}L{to} {}\"", y + FALL);
        let style = "stroke=\"#36506b\" stroke-width=\"2\" marker-end=\"url(#tip)\"";
        svg.shape("path", format_args!("{path} {style}"));
        svg.text(middle, y - 4, "", &arrow.what);
        svg.text(middle, y + FALL + 12, "font-size=\"12\" fill=\"#666\"", &arrow.detail);
    }
    svg.finish(WIDTH, height, "font-size=\"15\" text-anchor=\"middle\"")
}
