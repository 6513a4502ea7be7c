//! What a coordinator does while it leads: decide, order, look after nodes.

pub mod callback;
pub mod check_back;
pub mod decision_loop;
pub mod order_channels;
