//! E0597: memory of a function isn't registered: the adapter could use it after the function.
use ferroce::verbs::Domain;

pub fn f(domain: &Domain) {
    let mut bytes = [0_u8; 64];
    bytes[0] = 2;
    let _ = domain.register(bytes.to_vec());
    let _ = domain.register(&mut bytes[..]); // WRONG
}
