//! What is done when the library is loaded: one system call.

/// Entered in `.init_array` by `link/mod.rs`. Which processors the process has is seen best before its program begins: its
/// threads may bind themselves to some of them.
#[unsafe(export_name = "ferroce_c_loaded")]
extern "C" fn loaded() {
    ferroce_nic::sys::note_processors();
}
