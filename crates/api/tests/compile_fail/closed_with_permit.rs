//! E0505: a permit is of a connection that exists.
use ferroce::Result;
use ferroce::session::Connection;
use ferroce::verbs::Send;

pub async fn f(peer: Connection) -> Result<()> {
    let permit = peer.ready().await?;
    peer.close(); // WRONG
    permit.post(Send::new(()))?.await?;
    Ok(())
}
