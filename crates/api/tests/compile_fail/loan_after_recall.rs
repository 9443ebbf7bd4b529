//! E0382: a loan that was recalled has no token.
use ferroce::rights;
use ferroce::verbs::Loan;

pub fn f(loan: Loan<rights::Write>) -> usize {
    let buffer = loan.recall();
    let _ = loan.token(); // WRONG
    buffer.len()
}
