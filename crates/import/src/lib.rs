//! Objects that another context of the host may import (ibv_import_device(3)): each context's *ledger* lists its domains,
//! regions and device memory by handle, and its descriptor is the context's `cmd_fd`.
//!
//! In here: handles, the ledger, and how domains, regions and device memory of another process become objects of this one.
//! Out of here: what the objects are, and contexts.
#![forbid(unsafe_code)]

mod consent;
mod exporter;
mod handles;
mod ledger;

pub use consent::register;
pub use exporter::Exporter;
pub use handles::Handles;
pub use ledger::no_such;
