//! E0608: the peer writes the memory of a loan.
use ferroce::rights;
use ferroce::verbs::Loan;

pub fn f(loan: &Loan<rights::Write>) -> bool {
    let _ = loan[0]; // WRONG
    loan.is_returned()
}
