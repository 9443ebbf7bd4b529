//! E0382: a permit is for one request.
use ferroce::Result;
use ferroce::session::Connection;
use ferroce::verbs::Send;

pub async fn f(peer: &Connection) -> Result<()> {
    let permit = peer.ready().await?;
    permit.post(Send::new(()))?.await?;
    permit.post(Send::new(()))?.await?; // WRONG
    Ok(())
}
