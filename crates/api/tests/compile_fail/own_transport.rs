//! E0277: the transports are those of the crate.
use ferroce::verbs::Transport;

pub enum Mine {}

pub fn needs<T: Transport>() {}

pub fn f() {
    needs::<ferroce::verbs::Reliable>();
    needs::<Mine>(); // WRONG
}
