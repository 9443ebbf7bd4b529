//! E0451: an endpoint is made by a queue pair, or from a peer's bytes.
use ferroce::Result;
use ferroce::verbs::Endpoint;

pub fn f(bytes: [u8; 64]) -> Result<Endpoint> {
    let endpoint = Endpoint::from_bytes(bytes)?;
    let endpoint = Endpoint { qpn: 1, ..endpoint }; // WRONG
    Ok(endpoint)
}
