//! E0382: revoked memory has no token.
use ferroce::{Exposed, rights};

pub fn f(exposed: Exposed<rights::Write>) {
    let _ = exposed.revoke();
    let _ = exposed.token(); // WRONG
}
