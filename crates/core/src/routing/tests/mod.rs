//! The table against random histories of a map, the machine against every order of events.

mod requests;
mod tables;
