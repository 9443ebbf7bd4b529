//! `ferroce view`: the page of a capture in a real browser.

mod common;

use common::{Installation, run};
use ferroce_tests::{Browser, require};
use ferroce_wire::{
    Aeth, Bth, Headers, ICRC_LEN, NakCode, Opcode, Operation, ROCE_V2_PORT, Reth, Service, Syndrome,
};
use std::path::Path;
use std::time::Duration;

/// Of the browser's clock: the page's script has run by then.
const LOADED: Duration = Duration::from_secs(2);

/// A capture of pcap whose packets are raw IP, one each microsecond.
struct Capture(Vec<u8>, u32);

impl Capture {
    fn new() -> Self {
        let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101];
        Self(words.iter().flat_map(|word| word.to_le_bytes()).collect(), 0)
    }

    /// A packet from 10.0.0.A to 10.0.0.B.
    fn packet(
        &mut self,
        from_to: [u8; 2],
        qp: u32,
        operation: Operation,
        psn: u32,
        syndrome: Option<Syndrome>,
    ) {
        let mut headers = Headers::new(Bth::new(Opcode { service: Service::Rc, operation }, qp, psn));
        if operation == Operation::WriteOnly {
            headers.reth = Some(Reth { va: 0x1000, rkey: 0x101, dma_len: 64 });
        }
        headers.aeth = syndrome.map(|syndrome| Aeth { syndrome: syndrome.to_u8(), msn: 1 });
        let mut transport = vec![0; 64];
        let len = headers.emit(&mut transport).unwrap();
        transport.truncate(len);
        let payload = if syndrome.is_some() { 0 } else { 64 };
        transport.resize(len + payload + ICRC_LEN, 0);
        let mut ip = vec![0_u8; 28];
        (ip[0], ip[9]) = (0x45, 17);
        ip[12..16].copy_from_slice(&[10, 0, 0, from_to[0]]);
        ip[16..20].copy_from_slice(&[10, 0, 0, from_to[1]]);
        ip[22..24].copy_from_slice(&ROCE_V2_PORT.to_be_bytes());
        ip[24..26].copy_from_slice(&(transport.len() as u16 + 8).to_be_bytes());
        let len = (ip.len() + transport.len()) as u32;
        for word in [0, self.1, len, len] {
            self.0.extend(word.to_le_bytes());
        }
        self.1 += 1;
        self.0.extend(ip);
        self.0.extend(transport);
    }

    /// A connection on which a packet is lost, a receive is missing, and a key is wrong.
    fn troubled() -> Self {
        let mut capture = Self::new();
        let ack = Some(Syndrome::ACK_UNLIMITED);
        let (there, back) = ([1, 2], [2, 1]);
        for (operation, psn) in
            [(Operation::SendFirst, 1), (Operation::SendMiddle, 2), (Operation::SendLast, 3)]
        {
            capture.packet(there, 0x12_3456, operation, psn, None);
        }
        let missed = Some(Syndrome::Nak(NakCode::PsnSequenceError));
        capture.packet(back, 0xab_cdef, Operation::Acknowledge, 2, missed);
        capture.packet(there, 0x12_3456, Operation::SendMiddle, 2, None);
        capture.packet(there, 0x12_3456, Operation::SendLast, 3, None);
        capture.packet(back, 0xab_cdef, Operation::Acknowledge, 3, ack);
        capture.packet(there, 0x12_3456, Operation::SendOnly, 4, None);
        capture.packet(back, 0xab_cdef, Operation::Acknowledge, 4, Some(Syndrome::RnrNak { timer: 1 }));
        capture.packet(there, 0x12_3456, Operation::SendOnly, 4, None);
        capture.packet(back, 0xab_cdef, Operation::Acknowledge, 4, ack);
        capture.packet(there, 0x12_3456, Operation::WriteOnly, 5, None);
        let refused = Some(Syndrome::Nak(NakCode::RemoteAccessError));
        capture.packet(back, 0xab_cdef, Operation::Acknowledge, 5, refused);
        capture
    }

    fn write(&self, ferroce: &Installation, name: &str) -> String {
        let file = ferroce.path(name);
        std::fs::write(&file, &self.0).unwrap();
        file.into_os_string().into_string().unwrap()
    }
}

/// The page of a capture after its script has run, as a browser has it.
fn opened(browser: &Browser, page: &Path, fragment: &str) -> String {
    browser.document(&format!("file://{}{fragment}", page.display()), LOADED)
}

/// The labels of the rows that are drawn.
fn rows(dom: &str) -> Vec<String> {
    let drawn = dom.split("<main>").nth(1).and_then(|rest| rest.split("</main>").next()).expect("a page");
    let label = |row: &str| Some(row.split("<b>").nth(1)?.split("</b>").next()?.to_owned());
    drawn.split("<div class=\"row message").skip(1).filter_map(label).collect()
}

#[test]
fn a_capture_is_a_page_that_folds_colours_and_filters() {
    let browser = require!(Browser::new());
    let ferroce = Installation::new();
    let capture = Capture::troubled().write(&ferroce, "troubled.pcap");
    let page = ferroce.path("page.html");
    let outcome = run(&mut ferroce.ferroce(&["view", &capture, "-o", page.to_str().unwrap()]));
    assert_eq!((outcome.status, &*outcome.stdout, &*outcome.stderr), (Some(0), "", ""));

    let dom = opened(&browser, &page, "");
    let all = rows(&dom);
    assert_eq!(all.len(), 10, "{all:#?}");
    assert_eq!(all[0], "SEND, lost, 192 bytes in 3 packets, QP 0x123456, PSN 1 to 3");
    assert_eq!(all[1], "NAK: PSN sequence error, QP 0xabcdef, PSN 2");
    assert!(all[2].starts_with("SEND again, "), "{all:#?}");
    for kind in ["loss", "nak", "retransmission", "rnr", "ack"] {
        assert!(dom.contains(&format!("<div class=\"row message {kind}\"")), "{kind}: {all:#?}");
    }
    assert!(dom.contains("10.0.0.1") && dom.contains("10 of 10 messages, 13 packets"), "{dom}");

    let of_qp = rows(&opened(&browser, &page, "#qp=0xabcdef"));
    assert_eq!(of_qp.len(), 5, "{of_qp:#?}");
    let writes = rows(&opened(&browser, &page, "#op=RDMA+WRITE"));
    assert_eq!(writes, ["RDMA WRITE, 64 bytes, QP 0x123456, PSN 5"]);
    let trouble = rows(&opened(&browser, &page, "#kind=trouble"));
    assert_eq!(trouble.len(), 6, "{trouble:#?}");
}

#[test]
fn ten_thousand_packets_are_drawn_and_the_rest_is_counted() {
    let browser = require!(Browser::new());
    let ferroce = Installation::new();
    let mut capture = Capture::new();
    for psn in 0..12_345 {
        capture.packet([1, 2], 0x12_3456, Operation::SendOnly, psn, None);
    }
    let capture = capture.write(&ferroce, "long.pcap");
    let page = ferroce.path("page.html");
    run(&mut ferroce.ferroce(&["view", &capture, "-o", page.to_str().unwrap()]));
    let dom = opened(&browser, &page, "");
    assert!(dom.contains("Shows the first 10,000 packets; 2,345 were left out."));
    assert_eq!(rows(&dom).len(), 10_000);
}

#[test]
fn a_file_without_packets_gives_an_empty_page_and_one_that_is_no_capture_an_error() {
    let ferroce = Installation::new();
    let empty = Capture::new().write(&ferroce, "empty.pcap");
    let page = ferroce.path("page.html");
    let outcome = run(&mut ferroce.ferroce(&["view", &empty, "-o", page.to_str().unwrap()]));
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("contains no RoCEv2 packet") && page.exists(), "{outcome:?}");
    let outcome = run(&mut ferroce.ferroce(&["view", "/etc/passwd"]));
    assert_eq!((outcome.status, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    assert!(outcome.stderr.contains("/etc/passwd: it isn't a capture"), "{outcome:?}");
    let outcome = run(&mut ferroce.ferroce(&["view", &empty, "-o", "/nonexistent/page.html"]));
    assert!(
        outcome.status == Some(1) && outcome.stderr.contains("there is no directory /nonexistent"),
        "{outcome:?}"
    );
}
