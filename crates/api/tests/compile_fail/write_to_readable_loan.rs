//! E0277: a loan for reading isn't written.
use ferroce::verbs::{Loan, Read, Write};
use ferroce::{Buffer, rights};

pub fn f(loan: &Loan<rights::Read>, buffer: Buffer, other: Buffer) {
    let _ = Read::new(buffer, loan.token());
    let _ = Write::new(other, loan.token()); // WRONG
}
