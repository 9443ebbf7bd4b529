//! E0382: connecting consumes the setup.
use ferroce::Result;
use ferroce::verbs::{Endpoint, Reliable, Setup};

pub fn f(setup: Setup<Reliable>, peer: &Endpoint) -> Result<()> {
    let _ = setup.connect(peer)?;
    let _ = setup.number(); // WRONG
    Ok(())
}
