//! Keys that are not text.

use clap::Args;
use partage_wire::json::KeyText;

/// How keys are written on the command line.
#[derive(Debug, Clone, Copy, Args)]
pub struct Hex {
    /// Read keys as hex digits, such as 00ff
    #[arg(long)]
    pub hex: bool,
}

impl Hex {
    /// The key that is meant.
    pub fn key(self, text: &str) -> KeyText {
        match self.hex {
            true => KeyText::Hex { hex: text.to_owned() },
            false => KeyText::Text(text.to_owned()),
        }
    }
}
