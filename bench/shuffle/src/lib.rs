//! Records to be shuffled, and whether what comes out is what went in: for this bench, and for other programs that shuffle.

pub mod check;
pub mod generate;
