//! What every other module stands on: numbers and names that are given out once, time as an argument, the numbers of a
//! cluster, and sentences about all of them.

pub mod count;
pub mod counter_jump;
pub mod id;
pub mod name;
pub mod planted;
pub mod settings;
pub mod suggest;
pub mod time;
