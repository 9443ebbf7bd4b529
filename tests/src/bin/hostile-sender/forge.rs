//! Packets that at least one check must refuse, whatever else is right about them.
//!
//! A packet with a right ICRC, from the peer's address, for the right QPN, with the right keys and a PSN that is due can't
//! be distinguished from a real one: no such packet is made here. Each kind has the defect in its name; the rest
//! is as right as it can be, or random. Where the ICRC is the defect, [`Flow::verify`] has refused it: over IPv4 the
//! identification isn't known to a receiver, so that one wrong ICRC in 65,536 passes for right.

use ferroce_wire::icrc::Flow;
use ferroce_wire::{
    Aeth, AtomicEth, BTH_LEN, Bth, Deth, Feth, Headers, ICRC_LEN, Opcode, Operation, Reth, Service,
};

/// What is known of the program under attack.
pub(crate) struct Victim {
    /// Its QPs of RC and UD.
    pub(crate) rc: u32,
    pub(crate) ud: u32,
    /// The QP that its RC QP is connected to.
    pub(crate) peer_rc: u32,
    /// The first PSN, both ways.
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    /// Of its memory, and where that begins.
    pub(crate) rkey: u32,
    pub(crate) va: u64,
}

/// No more PSNs than this are used while the packets are sent.
const USED_PSNS: u32 = 1 << 21;
const LONGEST: usize = 1400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Kind {
    /// Random bytes.
    Noise,
    WrongIcrc,
    WrongQpn,
    WrongPkey,
    WrongQkey,
    /// From an address that isn't the peer's.
    WrongSource,
    /// An opcode that doesn't exist or isn't the QP's service's.
    WrongOpcode,
    /// Cut off within the headers, or with more pad than payload, or of a length that no packet has.
    Malformed,
    /// A PSN that was due long ago, if ever.
    PastPsn,
    /// A PSN that is due in half an hour.
    FuturePsn,
    /// A packet that was recorded, as it was: its PSN is past.
    Replayed,
    /// A packet that was recorded, changed without a new ICRC.
    Mutated,
}

const KINDS: usize = Kind::Mutated as usize + 1;

pub(crate) struct Forge {
    victim: Victim,
    captured: Vec<Vec<u8>>,
    flows: [Flow; 2],
    future: bool,
    random: Random,
    made: [u64; KINDS],
}

impl Forge {
    /// `flows`: from the peer's address, and from another. `future`: PSNs that aren't due for long too.
    pub(crate) fn new(
        victim: Victim,
        captured: Vec<Vec<u8>>,
        flows: [Flow; 2],
        future: bool,
        seed: u64,
    ) -> Self {
        let random = Random::new(seed);
        Self { victim, captured, flows, future, random, made: [0; KINDS] }
    }

    /// How many of each kind were made.
    pub(crate) fn summary(&self) -> String {
        const NAMES: [&str; KINDS] = [
            "noise",
            "wrong ICRC",
            "wrong QPN",
            "wrong P_Key",
            "wrong Q_Key",
            "wrong source",
            "wrong opcode",
            "malformed",
            "past PSN",
            "future PSN",
            "replayed",
            "mutated",
        ];
        let parts: Vec<String> =
            NAMES.iter().zip(self.made).map(|(name, made)| format!("{made} {name}")).collect();
        parts.join(", ")
    }

    /// The next packet, to be sent from the peer's address (0) or another (1).
    pub(crate) fn packet(&mut self, source: usize) -> Vec<u8> {
        use Kind as K;
        const OF_PEER: [Kind; 10] = [
            K::Noise,
            K::WrongIcrc,
            K::WrongQpn,
            K::WrongPkey,
            K::WrongQkey,
            K::WrongOpcode,
            K::Malformed,
            K::PastPsn,
            K::Replayed,
            K::Mutated,
        ];
        let kind = match source {
            0 if self.future && self.below(2) == 0 => K::FuturePsn,
            0 => OF_PEER[self.below(OF_PEER.len() as u32) as usize],
            _ => K::WrongSource,
        };
        self.made[kind as usize] += 1;
        let flow = self.flows[source];
        match kind {
            K::Noise => {
                let length = self.below(LONGEST as u32) as usize;
                let bytes = self.bytes(length);
                self.spoil(bytes, &flow)
            }
            K::WrongIcrc => {
                let packet = self.plausible(kind);
                let packet = seal(packet, &flow);
                self.spoil(packet, &flow)
            }
            K::Replayed | K::Mutated => match self.recorded() {
                Some(packet) if kind == K::Replayed => seal(packet, &flow),
                Some(packet) => {
                    let packet = seal(packet, &flow);
                    let packet = self.reshape(packet);
                    self.spoil(packet, &flow)
                }
                None => self.spoil(vec![0; 64], &flow),
            },
            _ => seal(self.plausible(kind), &flow),
        }
    }

    /// A packet without ICRC, right but for the defect of `kind` and for unknown values.
    fn plausible(&mut self, kind: Kind) -> Vec<u8> {
        let datagram = match kind {
            Kind::WrongQkey => true,
            // From another address or with another PSN a datagram is as good as any.
            Kind::WrongSource | Kind::PastPsn | Kind::FuturePsn => false,
            _ => self.below(8) == 0,
        };
        let opcode = self.opcode(if datagram { Service::Ud } else { Service::Rc });
        let dest_qp = if datagram { self.victim.ud } else { self.victim.rc };
        let mut bth = Bth {
            opcode,
            solicited: self.below(2) == 0,
            migrated: self.below(8) != 0,
            pad: 0,
            pkey: 0xffff,
            fecn: self.below(8) == 0,
            becn: self.below(8) == 0,
            dest_qp,
            ack_request: self.below(2) == 0,
            psn: self.psn(kind),
        };
        match kind {
            Kind::WrongQpn => bth.dest_qp = self.other_qpn(),
            Kind::WrongPkey => bth.pkey = [0x7ffe, 0xfffe, 0, 0x8001][self.below(4) as usize],
            Kind::WrongOpcode if !datagram => {
                let service = [Service::Uc, Service::Ud, Service::Xrc][self.below(3) as usize];
                bth.opcode = self.opcode(service);
            }
            Kind::WrongOpcode => bth.opcode = self.opcode(Service::Rc),
            _ => {}
        }
        let length = if bth.opcode.has_payload() { [1024, 0, 4, 512][self.below(4) as usize] } else { 0 };
        let mut headers = self.headers(bth, length as u32);
        if let Some(deth) = headers.deth.as_mut()
            && kind == Kind::WrongQkey
        {
            deth.qkey = self.below(self.victim.qkey);
        }
        let mut packet = vec![0; headers.len() + length];
        headers.emit(&mut packet).expect("the headers fit their opcode");
        let payload = self.bytes(length);
        let at = packet.len() - length;
        packet[at..].copy_from_slice(&payload);
        match kind {
            // Opcodes that mean nothing: reserved, or of services that aren't there.
            Kind::WrongOpcode if self.below(2) == 0 => {
                packet[0] = [0x15, 0x18, 0x1f, 0x40, 0x4a, 0x80, 0xc4, 0xff][self.below(8) as usize];
            }
            Kind::Malformed => self.break_off(&mut packet, headers.len()),
            _ => {}
        }
        packet
    }

    /// Makes a packet one that has no meaning: shorter than its headers, with a length or pad that can't be.
    fn break_off(&mut self, packet: &mut Vec<u8>, headers: usize) {
        match self.below(3) {
            0 => packet.truncate(self.below(headers as u32) as usize),
            1 => packet.push(0),
            _ => {
                packet.truncate(headers);
                packet[1] |= 0x10 + 0x10 * self.below(3) as u8;
            }
        }
    }

    fn opcode(&mut self, service: Service) -> Opcode {
        loop {
            let opcode = Opcode::from_u8(self.below(256) as u8);
            if let Some(opcode) = opcode.filter(|opcode| opcode.service == service) {
                return opcode;
            }
        }
    }

    /// By default one of those that the connection uses meanwhile.
    fn psn(&mut self, kind: Kind) -> u32 {
        let distance = match kind {
            Kind::FuturePsn => 2 * USED_PSNS + self.below(USED_PSNS),
            Kind::PastPsn => (1 << 24) - 1 - self.below(2 * USED_PSNS),
            _ => self.below(USED_PSNS),
        };
        self.victim.psn.wrapping_add(distance) & 0x00ff_ffff
    }

    /// A QPN that isn't the victims'.
    fn other_qpn(&mut self) -> u32 {
        loop {
            // Often of the same process, or one that leads to the same socket.
            let qpn = match self.below(3) {
                0 => self.victim.rc ^ (1 + self.below(0xfff)),
                1 => self.victim.rc ^ (64 + 64 * self.below(60)) << 12,
                _ => self.below(1 << 24),
            };
            // The victims' own are next to each other.
            if [self.victim.rc, self.victim.peer_rc].iter().all(|&own| qpn.abs_diff(own) > 8) {
                return qpn;
            }
        }
    }

    fn headers(&mut self, bth: Bth, length: u32) -> Headers {
        let opcode = bth.opcode;
        let mut headers = Headers::new(bth);
        let va = self.victim.va + u64::from(self.below(1 << 17) & !7);
        let rkey = self.victim.rkey;
        let src_qp = self.victim.peer_rc + 1;
        headers.deth = opcode.carries_deth().then_some(Deth { qkey: self.victim.qkey, src_qp });
        headers.xrc_srqn = opcode.carries_xrceth().then_some(rkey);
        headers.flush = opcode
            .carries_feth()
            .then(|| Feth { placement: self.below(16) as u8, selectivity: self.below(4) as u8 });
        headers.reth = opcode.carries_reth().then(|| {
            let dma_len = if opcode.operation == Operation::ReadRequest { 64 } else { length };
            Reth { va, rkey, dma_len }
        });
        headers.atomic =
            opcode.is_atomic().then_some(AtomicEth { va, rkey, swap_or_add: 0x6666, compare: 0 });
        headers.aeth = opcode.carries_aeth().then(|| {
            // ACK, RNR NAK, sequence error, remote access error.
            let syndrome = [0x1f, 0x2e, 0x60, 0x62][self.below(4) as usize];
            Aeth { syndrome, msn: self.below(1 << 24) }
        });
        headers.atomic_ack = opcode.carries_atomic_ack().then_some(0x7777);
        headers.immediate = opcode.carries_immediate().then_some([6; 4]);
        headers.invalidate_rkey = opcode.carries_invalidate().then_some(rkey);
        headers
    }

    /// A recorded packet of the RC connection towards the victim, without its ICRC. (A repeated datagram would be received twice.)
    fn recorded(&mut self) -> Option<Vec<u8>> {
        for _ in 0..64 {
            let index = self.below(self.captured.len().max(1) as u32) as usize;
            let packet = self.captured.get(index)?;
            let dest = packet.get(5..8).map(|b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
            if dest == Some(self.victim.rc)
                && packet.len() > BTH_LEN + ICRC_LEN
                && packet[0] != Opcode::CNP.to_u8()
            {
                return Some(packet[..packet.len() - ICRC_LEN].to_vec());
            }
        }
        None
    }

    /// Cut, lengthened, or with some bits changed.
    fn reshape(&mut self, mut packet: Vec<u8>) -> Vec<u8> {
        match self.below(4) {
            0 => packet.truncate(self.below(packet.len() as u32) as usize),
            1 => {
                let more = 1 + self.below(64) as usize;
                packet.extend(self.bytes(more));
            }
            _ => {}
        }
        packet
    }

    /// Changes bits until the ICRC is wrong.
    fn spoil(&mut self, mut packet: Vec<u8>, flow: &Flow) -> Vec<u8> {
        while packet.len() >= BTH_LEN + ICRC_LEN && flow.verify(&packet, 0).is_some() {
            for _ in 0..=self.below(4) {
                let at = self.below(packet.len() as u32) as usize;
                packet[at] ^= 1 << self.below(8);
            }
        }
        packet
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.next().to_ne_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    fn next(&mut self) -> u64 {
        self.random.next()
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.below(limit)
    }
}

/// The same numbers for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// xorshift64*, Vigna 2016.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        (((self.next() >> 32) * u64::from(limit)) >> 32) as u32
    }
}

/// Appends the ICRC that is right from that address.
pub(crate) fn seal(mut packet: Vec<u8>, flow: &Flow) -> Vec<u8> {
    let mut crc = flow.start(packet.len() + ICRC_LEN, 0);
    crc.bth(&packet);
    packet.extend(crc.finish());
    packet
}
