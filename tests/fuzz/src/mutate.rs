//! Changes bytes as a damaged disk, a careless program or a stranger would.

/// Numbers at which parsers go wrong.
const TELLING: [u64; 10] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// Makes mutants, the same ones in each run.
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Which mutants there are follows from the seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed | 1 }
    }

    /// A number below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        // Xorshift: what is wanted is variety.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % (end.max(1) as u64)) as usize
    }

    /// One to four changes of `bytes`; some take a piece of `other`.
    pub fn mutant(&mut self, bytes: &[u8], other: &[u8]) -> Vec<u8> {
        let mut mutant = bytes.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut mutant, other);
        }
        mutant
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len());
        match self.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.below(256) as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + self.below(64)).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            4 => {
                let from = self.below(other.len());
                let piece = &other[from..(from + self.below(64)).min(other.len())];
                drop(bytes.splice(at..at, piece.iter().copied()));
            }
            5 => {
                let number = TELLING[self.below(TELLING.len())];
                let size = 1 << self.below(4);
                let number = if self.below(2) == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
                bytes.iter_mut().skip(at).zip(&number[..size]).for_each(|(byte, new)| *byte = *new);
            }
            _ => {
                let end = (at + 1 + self.below(16)).min(bytes.len());
                let piece = bytes[at.min(end)..end].to_vec();
                (0..self.below(8)).for_each(|_| drop(bytes.splice(at..at, piece.iter().copied())));
            }
        }
    }
}
